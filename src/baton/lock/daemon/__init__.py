"""The lock daemon around the pure core.

- `daemon`: `LockDaemon`, which runs everything on one event loop.
- Workloads: `workload_socket` (frames), `sessions` (frames to events, instructions to frames), `allowances` (memory
  limits that several processes share).
- Control: `control_socket` (requests), `commands` (what they do), `overrides` (what they have set).
- Kept over restarts: `journal` (the files), `holders` (who holds the cards), `accounts` (what clients received).
- `listener` (accepting connections), `metrics`.
"""
