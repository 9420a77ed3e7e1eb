"""Who may run on a card now, as a pure state machine: events and the time in, instructions out."""
