"""The commands that talk to a cluster, and what they share."""
