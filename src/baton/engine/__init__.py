"""The scheduling logic: cluster state, card ledger, sessions, actions, plugins and explanations.

Nothing in this package reads a clock, a socket, a file or a random number. Events go in (`baton.engine.events`),
a `Plan` comes out, and the same state with the same configuration gives the same plan on every run. The live
scheduler, the extender, `why`, local mode and the simulator all call `baton.engine.engine.Engine`.
"""
