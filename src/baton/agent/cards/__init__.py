"""The node's cards over time: inventory, samples and health."""
