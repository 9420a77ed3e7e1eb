"""The commands for one machine without Kubernetes."""
