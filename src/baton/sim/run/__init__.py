"""Run mode: arrivals, durations and failures as discrete events around the engine.

- `replay`: the loop that starts, slows and stops jobs; `agenda` holds the events to come
- `jobs`, `waiting`, `lines`: a job on its way, the jobs that wait, and the lines they wait in
- `books`: which job holds which card; `sharing`: how fast jobs on one card run
- `prediction`: what a policy knows of durations; `feasibility`: whether a job can ever run
- `translation`: traces as the engine's nodes, groups and pods
- `metrics`: the numbers of a run; `settings`: how the simulated cluster behaves
"""
