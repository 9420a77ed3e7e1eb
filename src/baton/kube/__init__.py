"""Everything that speaks to Kubernetes."""
