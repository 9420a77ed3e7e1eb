"""The commands that run a long-lived program in the foreground."""
