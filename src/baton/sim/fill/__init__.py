"""Fill mode: pods arrive until a cluster is full and never leave."""
