"""Sharing the GPUs of one machine without Kubernetes.

- `launch`: running a program under the lock (`baton run`); `daemon`: finding or starting the lock daemon.
- `telemetry`: GPU readings for the lock daemon.
- `scenarios` and `trainer`: the jobs of `baton demo` and of the measurements.
"""
