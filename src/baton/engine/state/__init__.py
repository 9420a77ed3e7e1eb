"""The cluster state that the engine keeps between cycles: nodes, jobs, and every change as a journalled move."""
