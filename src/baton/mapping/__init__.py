"""Kubernetes' and Volcano's objects in the engine's words. Pure: values in, values out."""
