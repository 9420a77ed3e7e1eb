"""How hard the random tests try: `BATON_TEST_EFFORT` scales the number of their stories.

1 is what `make test` does. `make check` uses a tenth, so that its answer comes within two minutes; a night's hunt for a
rare fault uses 10 or 100.
"""

import os

EFFORT = float(os.environ.get("BATON_TEST_EFFORT", "1"))


def scaled(stories: int) -> int:
    """That many stories at the chosen effort, and at least one."""
    return max(1, round(stories * EFFORT))
