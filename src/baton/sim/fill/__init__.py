"""Fill mode: pods arrive until a cluster is full and never leave.

- `filling`: one fill, and the curves it yields
- `placement`: the placement policies that it compares
- `cluster`: the cluster as arrays
"""
