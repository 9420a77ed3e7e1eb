"""A real Kubernetes on one machine, for tests: real API server, kubelets, containerd; KWOK for thousands of nodes.

A *bed* is one such cluster. Everything it creates carries the bed's id (processes in their environment, links and
cgroups in their names, files in their path), so teardown needs no bookkeeping that a crash could lose: see
`testbed.state` for the names and `testbed.teardown` for the teardown. From the shell: `python -m testbed --help`.
"""
