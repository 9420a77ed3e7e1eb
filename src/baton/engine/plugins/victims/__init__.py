"""Which pods are never evicted."""
