"""The commands for one machine without Kubernetes, one module per command."""
