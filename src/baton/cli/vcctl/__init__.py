"""`vcctl`: Volcano's own command line."""
