"""The connection to the API server: labels, annotations, conditions, and which pod got which cards."""
