"""Who may run on a GPU now.

The core (`core` and what it imports: `events`, `settings`, `state`, `turns`, `settling`, `policy`, `quantum`, `modes`,
`quotas`, `gangs`, `recall`) is pure: events and a time go in, instructions come out. Around it stand the wire (`wire`,
`server`, `sessions`), the control socket (`control`, `commands`, `status`), what survives a kill (`journal`) and
the daemon that drives them all (`daemon`).
"""
