"""The simulator: traces of jobs and nodes run through the engine that schedules a live cluster.

It has two modes. A *run* (`run/`) replays arrivals and durations as discrete events and asks the engine at each change.
A *fill* (`fill/`) adds pods to a cluster until it is full, the Monte Carlo test that the literature uses to compare
placement policies. Both read their input from `traces/`.

- `scheduling_policies`: the named policies of a run, and configurations from files
- `study`: the trace, cluster and settings that the options name, and one run of them
- `parallel`: independent simulations on all cores
- `report`, `plots`: tables and the HTML report
"""
