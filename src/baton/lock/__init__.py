"""The GPU lock: decides which process may run on a GPU now.

- `core`: the decisions, as a pure state machine. Events and the time go in, instructions come out.
- `daemon`: the process around the core: sockets, journal, accounts, metrics.
- What the daemon and its clients share: `wire` (messages of workloads), `control` (the control protocol and its
  clients), `status` (what a status contains), `paths` (sockets and files), `peers` (credentials of a connection),
  `config` (the daemon's configuration), `telemetry` (the port for GPU readings), `placement` (GPUs for `baton run`),
  `process` (starting a daemon).
"""
