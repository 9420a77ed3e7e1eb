"""One cycle of decisions: the plugins and their votes over the live state."""
