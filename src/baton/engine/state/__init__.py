"""The cluster as the engine keeps it between cycles: nodes, jobs, and every change as a journalled move."""
