"""Cards: the ledger of who holds what, the choice of cards for a pod, and fragmentation."""
