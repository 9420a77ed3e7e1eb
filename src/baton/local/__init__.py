"""The same product on one machine without Kubernetes: `baton run`, `baton top`, `baton demo`."""
