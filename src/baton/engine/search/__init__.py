"""The search for places: room on nodes and cards, network domains, and victims whose eviction would make room."""
