"""Plugins that decide where a pod goes: filters and scores of nodes and cards."""
