"""Baton: GPU sharing and GPU scheduling for Kubernetes, and for one machine without it."""

__version__ = "0.1.0.dev0"
