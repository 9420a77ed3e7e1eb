"""Side-by-side measurements: each a ratio against a named baseline in the same run, never a timed assertion.

One module per benchmark. Its docstring says what is measured against what; its `run()` measures and prints a table.
"""
