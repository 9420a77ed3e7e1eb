"""Plugins that protect pods from eviction."""
