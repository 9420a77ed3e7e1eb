"""The simulator: traces of jobs and nodes run through the same engine that schedules a live cluster.

Two modes. A *run* replays arrivals and durations as discrete events and asks the engine at each change. A *fill* drops
pods into a cluster until it is full, the Monte-Carlo test by which placement policies are compared in the literature.
"""
