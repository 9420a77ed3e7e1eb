"""Volcano Jobs: pure rules for phases, policies and pods, and the controller that carries them out."""
