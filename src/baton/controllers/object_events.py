"""Events about an object as values: pure rules return them, and the controller around the rules records them."""

from collections.abc import Iterable
from typing import NamedTuple

from baton.kube.recorder import Recorder
from baton.model.meta import ObjectReference


class ObjectEvent(NamedTuple):
    """An event to record about the object that is being decided on."""

    reason: str
    message: str
    warning: bool = False


def record(recorder: Recorder, about: ObjectReference, events: Iterable[ObjectEvent]) -> None:
    for event in events:
        recorder.record(about, event.reason, event.message, warning=event.warning)
