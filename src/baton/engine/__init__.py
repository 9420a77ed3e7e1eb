"""The scheduler's mind: pure decisions, no I/O, no clock."""
