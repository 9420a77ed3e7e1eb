"""Simulated containers: applies what their commands would do to the status of their pods.

KWOK keeps pods running until they are deleted. The cases of Volcano's suite need pods that end by themselves, after a
time and with an exit code given in the container's command (`sleep 10s && exit 3`). The player parses such commands and
ends the pod when its time has come. It is not a shell: it knows the few commands that the suite uses, and treats any
other as a program that is missing from the image, as the suite does (`sleep 10s && xxx`). The commands of the suite's
training frameworks succeed after a while, as if their images were present.

A container that its pod's restart policy restarts keeps running, so its pod never ends.
"""

import contextlib
import datetime
import http.client
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from testbed.api import Api, ApiError, Object

FRAMEWORK_S = 5.0
"""How long a framework's program runs; long enough for a case to see the job Running."""
NOT_FOUND = 127
"""A shell's exit code if the program does not exist."""
NO_SCRIPT = 2
"""A shell's exit code if the script to read does not exist."""

_RETRY_S = 0.5
_PODS = "/api/v1/pods"
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash"})
_FRAMEWORKS = frozenset({"python", "python3", "mpiexec"})
_HARMLESS = frozenset({"true", "echo", "export", "mkdir"})
_UNIT_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# A quoted part, or any other character; only the latter may be separators.
_PIECE = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|`[^`]*`|\\.|&&|.""", re.DOTALL)
_SLEEP = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_ASSIGNMENT = re.compile(r"\w+=")


class End(NamedTuple):
    """How a container ends: how long after its start, and with which exit code."""

    after_s: float
    code: int


class Step(NamedTuple):
    """One command of a script; `needs_success` is set after `&&`."""

    words: str
    needs_success: bool


def steps(script: str) -> Iterator[Step]:
    """The commands of a shell script, split at unquoted `&&`, `;` and line ends."""
    words, needs_success = "", False
    for piece in _PIECE.findall(script):
        if piece not in ("&&", ";", "\n"):
            words += piece
            continue
        if words.strip():
            yield Step(words.strip(), needs_success)
        words, needs_success = "", piece == "&&"
    if words.strip():
        yield Step(words.strip(), needs_success)


def end_of_script(script: str) -> End | None:
    """How a script ends; None if it never does."""
    after_s, code = 0.0, 0
    for step in steps(script):
        if step.needs_success and code:
            continue
        words = step.words.split()
        if words[0] == "exit":
            return End(after_s, int(words[1]) if words[1:] and words[1].isdecimal() else code)
        end = _end_of_command(words)
        if end is None:
            return None
        after_s, code = after_s + end.after_s, end.code
    return End(after_s, code)


def _end_of_command(words: Sequence[str]) -> End | None:
    program = words[0]
    if program == "sleep":
        match = _SLEEP.fullmatch(words[1]) if words[1:] else None
        return End(float(match[1]) * _UNIT_S[match[2]], 0) if match else None
    if program in _FRAMEWORKS:
        return End(FRAMEWORK_S, 0)
    if program.endswith("sshd"):
        return None if "-D" in words else End(0.0, 0)
    if program in _SHELLS:
        return End(0.0, NO_SCRIPT)
    if program in _HARMLESS or _ASSIGNMENT.match(program):
        return End(0.0, 0)
    return End(0.0, NOT_FOUND)


def end_of_container(container: Mapping[str, Any]) -> End | None:
    """How a container ends according to its command; one without a command runs until deleted, as nginx does."""
    words = [*container.get("command", ()), *container.get("args", ())]
    if not words:
        return None
    if words[0] in _SHELLS and words[1:2] == ["-c"] and len(words) > 2:
        return end_of_script(words[2])
    return _end_of_command(words)


def end_of_pod(pod: Object) -> End | None:
    """When the last container of a pod ends, and the first exit code that is not 0; None if the pod keeps running."""
    policy = pod["spec"].get("restartPolicy", "Always")
    ends = [end_of_container(container) for container in pod["spec"]["containers"]]
    ended = [end for end in ends if end is not None]
    if policy == "Always" or len(ended) < len(ends):
        return None
    code = next((end.code for end in ended if end.code), 0)
    if policy == "OnFailure" and code:
        return None
    return End(max(end.after_s for end in ended), code)


def ended_status(pod: Object, code: int, now: str) -> Object:
    """The status of a pod whose containers have all ended."""
    began = pod["status"].get("startTime", now)
    reason = "Error" if code else "Completed"
    stopped = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now}
    return {
        "phase": "Failed" if code else "Succeeded",
        "conditions": [
            *(each for each in pod["status"].get("conditions", ()) if each["type"] not in ("Ready", "ContainersReady")),
            *(
                {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
                for kind in ("ContainersReady", "Ready")
            ),
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "state": {"terminated": stopped},
            }
            for container in pod["spec"]["containers"]
        ],
    }


class ContainerPlayer:
    """Watches the pods of a cluster and ends those whose containers have ended; a context manager."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stopping = threading.Event()
        self._timers: dict[str, threading.Timer] = {}
        self._thread = threading.Thread(target=self._watch, name="container-player", daemon=True)

    def __enter__(self) -> "ContainerPlayer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread blocks in a read until the API server sends something; as a daemon thread it ends with the server.
        self._stopping.set()
        for timer in list(self._timers.values()):
            timer.cancel()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, ApiError):
                found = self._api.get(_PODS)
                for pod in found["items"]:
                    self._consider("ADDED", pod)
                for kind, pod in self._api.watch(_PODS, found["metadata"]["resourceVersion"]):
                    if self._stopping.is_set():
                        return
                    self._consider(kind, pod)
            self._stopping.wait(_RETRY_S)

    def _consider(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            if timer := self._timers.pop(uid, None):
                timer.cancel()
        elif pod["status"].get("phase") == "Running" and uid not in self._timers and (end := end_of_pod(pod)):
            timer = threading.Timer(end.after_s, self._end, (pod, end.code))
            timer.daemon = True
            self._timers[uid] = timer
            timer.start()

    def _end(self, pod: Object, code: int) -> None:
        """End a pod. The uid in the request makes the API server reject it if the pod was deleted or replaced."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"metadata": {"uid": metadata["uid"]}, "status": ended_status(pod, code, now)}
        with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
            self._api.patch(path, body)
