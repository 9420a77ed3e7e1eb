"""Plugins that decide what a queue may use, and which jobs are admitted into it."""
