"""Which job goes first, and when it may start."""
