"""The same jobs on the same cards in three ways: one after the other, all at once, and all at once under the lock.

Each way has its own simulated machine, so the three ways run side by side without affecting each other. A job is a
process (`baton.local.trainer`) that reports each step; `Progress` shows how far a way is. The hook and the daemon use
their defaults; nothing is tuned to the jobs or to the speed of the simulated time.
"""

import asyncio
import contextlib
import enum
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.errors import BatonError, one_failure
from baton.gpu import profiles, simulated
from baton.local.daemon import OwnDaemon
from baton.native import library

_GIB = 1 << 30


class Way(enum.StrEnum):
    """How the jobs share the cards."""

    SERIAL = "serial"
    UNMANAGED = "unmanaged"
    BATON = "baton"


@dataclass(frozen=True)
class Job:
    """One training job of one tenant on one card. Times are modelled seconds."""

    tenant: str
    name: str
    card: int
    working_set_gib: float
    steps: int = 20
    gpu_s: float = 15.0
    cpu_s: float = 15.0
    kernels: int = 48
    blocks: int = 112

    @property
    def solo_s(self) -> float:
        """How long the job takes alone, without the time to load its memory."""
        return self.steps * (self.gpu_s + self.cpu_s)


@dataclass
class JobProgress:
    """How far one job is. Times are seconds since its way began."""

    job: Job
    step: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    working_at: float = 0.0
    """When it had allocated its memory, by the monotonic clock: excludes the start of the interpreter."""
    reported_at: float = 0.0
    """When it last reported a step."""
    failure: str = ""

    @property
    def fraction(self) -> float:
        return self.step / self.job.steps


@dataclass
class Progress:
    """How far one way is."""

    way: Way
    jobs: list[JobProgress]
    began: float = 0.0
    ended_at: float | None = None
    stopped: bool = False
    fractions_at_first_finish: dict[str, float] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        return sum(job.fraction for job in self.jobs) / len(self.jobs)

    def elapsed_s(self) -> float:
        return self.ended_at if self.ended_at is not None else time.monotonic() - self.began

    def fairness(self) -> float | None:
        """Jain's index of the tenants' mean progress at the moment when the first job finished.

        1 means that all tenants had made the same progress; 1/n means that one of n tenants had made all of it.
        """
        shares = list(self.fractions_at_first_finish.values())
        squares = sum(share * share for share in shares)
        return sum(shares) ** 2 / (len(shares) * squares) if squares else None

    def note_first_finish(self) -> None:
        """Remember the progress of all tenants when the first job finishes."""
        if not self.fractions_at_first_finish:
            by_tenant: dict[str, list[float]] = defaultdict(list)
            for job in self.jobs:
                by_tenant[job.job.tenant].append(job.fraction)
            self.fractions_at_first_finish = {name: sum(of) / len(of) for name, of in by_tenant.items()}


class Scenario:
    """Runs one way to its end. Use as an async context manager; leaving it ends every process that it started."""

    def __init__(self, way: Way, jobs: Sequence[Job], folder: Path, *, profile: str, time_scale: float) -> None:
        self.progress = Progress(way, [JobProgress(job) for job in jobs])
        self._folder = folder / way
        self._profile = profile
        self._time_scale = time_scale
        self._daemon: OwnDaemon | None = None
        self._processes: set[asyncio.subprocess.Process] = set()

    async def __aenter__(self) -> "Scenario":
        cards = 1 + max(job.job.card for job in self.progress.jobs)
        simulated.start([profiles.find(self._profile)] * cards, self._folder / "machine", self._time_scale)
        if self.progress.way is Way.BATON:
            self._daemon = OwnDaemon(self._folder / "run" / "lock", self._environment(None))
            await asyncio.to_thread(self._daemon.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes))
        if self._daemon is not None:
            await asyncio.to_thread(self._daemon.stop)
        simulated.stop(self._folder / "machine", force=True)

    async def run(self) -> None:
        """Run all jobs; raises an error if one fails."""
        self.progress.began = time.monotonic()
        cards: dict[int, list[JobProgress]] = defaultdict(list)
        for job in self.progress.jobs:
            cards[job.job.card].append(job)
        with one_failure():
            async with asyncio.TaskGroup() as group:
                for queue in cards.values():
                    for batch in [queue] if self.progress.way is Way.SERIAL else [[job] for job in queue]:
                        group.create_task(self._in_turn(batch))
        self.progress.ended_at = time.monotonic() - self.progress.began

    async def _in_turn(self, jobs: list[JobProgress]) -> None:
        for job in jobs:
            await self._run_job(job)

    async def _run_job(self, progress: JobProgress) -> None:
        job = progress.job
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "baton.local.trainer",
            "--working-set", str(int(job.working_set_gib * _GIB)),
            "--steps", str(job.steps),
            "--gpu-seconds", str(job.gpu_s),
            "--cpu-seconds", str(job.cpu_s),
            "--kernels", str(job.kernels),
            "--blocks", str(job.blocks),
            "--time-scale", str(self._time_scale),
            *(["--managed"] if self.progress.way is Way.UNMANAGED else []),
            env=self._environment(job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._processes.add(process)
        assert process.stdout is not None
        assert process.stderr is not None
        progress.started_at = time.monotonic() - self.progress.began
        async for line in process.stdout:
            report = json.loads(line)
            progress.step, progress.reported_at = report["step"], report["at"]
            if progress.step == 0:
                progress.working_at = report["at"]
        complaint = (await process.stderr.read()).decode(errors="replace").strip()
        if await process.wait() != 0:
            progress.failure = complaint.splitlines()[-1] if complaint else f"ended with {process.returncode}"
            raise BatonError(f"job {job.name} of {job.tenant} failed ({self.progress.way}): {progress.failure}")
        progress.finished_at = time.monotonic() - self.progress.began
        self.progress.note_first_finish()

    def _environment(self, job: Job | None) -> dict[str, str]:
        environment = {**os.environ, **simulated.environment(self._folder / "machine")}
        if job is None:
            return environment
        environment["CUDA_VISIBLE_DEVICES"] = str(job.card)
        if self._daemon is not None:
            environment |= {
                "LD_PRELOAD": str(library("libbaton.so")),
                "BATON_SOCKET_DIR": str(self._daemon.sockets),
                "BATON_TENANT": job.tenant,
                "BATON_RUN_ID": job.name,
            }
        return environment
