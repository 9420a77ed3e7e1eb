"""A session is one cycle of decisions: the plugins and their votes on the live state."""
