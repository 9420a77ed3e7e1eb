"""Queues: their state, the tree they form, and the counts of what waits in them."""
