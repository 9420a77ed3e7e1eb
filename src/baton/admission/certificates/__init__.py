"""The certificates of the webhooks."""
