"""Ready-made configurations, in the format of the file, for those who do not want to write one."""

from baton.engine.actions import ACTIONS
from baton.engine.configuration import Catalogue, Configuration, ConfigurationError, parse
from baton.engine.plugins import BUILT_IN

SIMPLE = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.SchedulePolicy: binpack
  - name: binpack
"""

PRESETS = {"simple": SIMPLE}


def configured(
    name_or_text: str, catalogue: Catalogue = BUILT_IN, *, where: str = "scheduler configuration"
) -> Configuration:
    """A preset by name, or the text of a configuration file."""
    text = PRESETS.get(name_or_text)
    if text is None:
        if "\n" not in name_or_text and ":" not in name_or_text:
            raise ConfigurationError([f"{name_or_text!r} is not a preset; known: {', '.join(PRESETS)}"])
        return parse(name_or_text, catalogue, ACTIONS, where=where)
    return parse(text, catalogue, ACTIONS, where=f"preset {name_or_text}")
