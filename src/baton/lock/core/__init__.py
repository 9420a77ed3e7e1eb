"""The lock as a pure state machine: events and the time in, instructions out.

- `machine`: `LockCore`, which handles the events; `events`: the events and instructions; `settings`: tunable numbers.
- State: `state` (card, client, turn, gang), `registry` (finds them), `departed` (ledgers of clients that are gone),
  `effects` (the consequences of the current event).
- `turns`: the operations that change who holds a card; `scheduling`: the decisions that use them.
- Rules: `precedence` (who goes next), `quantum` (how long a turn lasts), `modes` (together or in turns), `quotas`
  (compute limits), `gangs` (several cards at once), `recovery` (holders that an earlier daemon left behind).
"""
