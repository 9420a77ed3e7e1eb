"""Jobs and nodes to simulate.

- `workload`: the jobs and nodes that every source yields
- `readers`: public traces and Baton's own format
- `synthetic`: generated traces
- `recorded`: the recorded state of a cluster
"""
