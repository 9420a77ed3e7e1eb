"""Plugins that decide which job goes first, and when it may start."""
