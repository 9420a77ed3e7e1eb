"""`vcctl`: Volcano's own command line.

- `command`: flags, help and errors, as Volcano's command has them
- `verbs`: the behaviour of each verb
- `view`: the text of `vcctl job view`
"""
