"""A real Kubernetes on one machine, for tests: real API server, kubelets, containerd; KWOK for thousands of nodes."""
