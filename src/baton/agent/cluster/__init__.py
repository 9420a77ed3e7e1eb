"""The agent's side of the API server: labels, annotations, conditions, and which pod got which cards."""
