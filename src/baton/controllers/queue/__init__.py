"""Queues: their state, the tree they form, and the counts of their PodGroups."""
