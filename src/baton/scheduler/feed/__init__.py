"""From watches to the engine: informers, and the events that their changes mean."""
