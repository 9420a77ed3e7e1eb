"""The webhook's certificates."""
