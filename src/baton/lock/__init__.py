"""Who may run on a GPU now.

The core (`core` and what it imports: `events`, `state`, `policy`, `quantum`, `modes`, `quotas`, `gangs`,
`accounting`, `recall`) is pure: events and a time go in, instructions come out. Around it stand the wire (`wire`,
`server`), the control socket (`control`, `status`), what survives a kill (`journal`) and the daemon that drives
them all (`daemon`).
"""
