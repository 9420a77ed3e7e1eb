"""The commands that talk to a cluster.

- `job`, `queue`, `pod`, `why`, `state`, `install`: one module per command
- `options`, `requests`, `workloads`: shared options, requests, and the objects that commands make and read
- `reasons`, `observation`, `scheduler_link`: how `why` and `state` find their answers
"""
