"""JobFlows: jobs made in the order of a graph."""
