"""What a controller has to say about an object, as a value: rules say it, the shell around them records the event."""

from collections.abc import Iterable
from typing import NamedTuple

from baton.kube.recorder import Recorder
from baton.model.meta import ObjectReference


class Said(NamedTuple):
    """An event to record about the object under decision."""

    reason: str
    message: str
    warning: bool = False


def record(recorder: Recorder, about: ObjectReference, sayings: Iterable[Said]) -> None:
    for said in sayings:
        recorder.record(about, said.reason, said.message, warning=said.warning)
