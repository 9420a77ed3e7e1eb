"""PodGroups for plain workloads."""
