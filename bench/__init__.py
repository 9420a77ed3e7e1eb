"""Side-by-side measurements: each is a ratio against a named baseline in the same run, never a timed assertion.

One module per benchmark. Its docstring says what is compared with what; its `run()` measures and prints a table.
"""
