"""Beds for every test, the markers that say what a test needs, and how tests share two cores.

A test that needs a real Kubernetes carries the marker `cluster`. Where the programs or the rights for it are missing
it is skipped, all such tests with the same reason so that pytest folds them into one line; with `CI=true` they fail.

A test that starts processes or loads the compiled libraries carries the marker `process`. `make check` leaves out both
kinds. An audit hook keeps the markers true: an unmarked test that starts a process fails.

Under pytest-xdist, tests that share a bed run on one worker, so that no bed is started twice.
"""

import asyncio
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from testbed.bed import Bed, BedOptions
from testbed.errors import MissingError, lack_is_failure
from testbed.images import BUSYBOX, WORKLOAD
from testbed.packages import require_node_packages
from testbed.programs import default_sets, locate
from tests.effort import scaled

NODE_FIXTURES = frozenset({"kubelet_bed", "needs_kubelets"})
PROCESS_FOLDERS = ("tests/hook/", "tests/simgpu/", "tests/testbed/")
"""Every test below these compiles programs or runs them."""
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})

# How fast an example runs says something about the machine only. Hypothesis' own profile for CI stays what it is.
settings.register_profile(
    "unhurried",
    settings(),
    deadline=None,
    max_examples=scaled(settings().max_examples),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


@functools.cache
def lack_of_programs() -> str | None:
    """Why no control plane can run here, in one sentence."""
    try:
        for program_set in default_sets():
            locate(program_set)
    except MissingError as error:
        return f"tests on a real Kubernetes: {error}"
    return None


@functools.cache
def lack_of_nodes() -> str | None:
    """Why no real kubelet can run here, in one sentence."""
    if os.geteuid() != 0:
        return "tests on real kubelets: they need root"
    try:
        require_node_packages()
    except MissingError as error:
        return f"tests on real kubelets: {error}"
    return None


class _Running:
    """The test that runs now, for the audit hook, which cannot be removed again."""

    nodeid = ""
    unmarked = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _Running.unmarked:
        return
    native = event == "ctypes.dlopen" and "/_native/" in str(arguments[0])
    if native or event in _STARTS:
        what = "loads a compiled library" if native else "starts a process"
        raise AssertionError(f"{_Running.nodeid} {what} ({arguments[0]}); mark it with pytest.mark.process")


sys.addaudithook(_audit)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folders of processes, and put what takes longest first: at the end, short tests fill every worker."""
    for item in items:
        if item.nodeid.startswith(PROCESS_FOLDERS):
            item.add_marker("process")
    sizes = Counter(scope_of(item.nodeid) for item in items)
    items.sort(key=lambda item: -sizes[scope_of(item.nodeid)] if item.get_closest_marker("cluster") else 0)


def scope_of(nodeid: str) -> str:
    """What stays together on one worker: a folder of `tests/cluster`, which shares its bed, else a file."""
    return "/".join(nodeid.partition("::")[0].split("/")[:3])


class BedScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Distributes the tests over the workers by `scope_of`, so that no worker starts the bed of another again."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BedScheduling:
    return BedScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tell the audit hook which test runs, from its first fixture to its last."""
    marked = item.get_closest_marker("process") or item.get_closest_marker("cluster")
    _Running.nodeid, _Running.unmarked = item.nodeid, marked is None
    try:
        return (yield)
    finally:
        _Running.unmarked = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here. All from this one place: pytest folds skips of one place and reason into one line."""
    if item.get_closest_marker("cluster") is None:
        return
    lack = lack_of_programs()
    if lack is None and NODE_FIXTURES & set(getattr(item, "fixturenames", ())):
        lack = lack_of_nodes()
    if lack is not None:
        pytest.skip(lack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None] | pytest.TestReport:
    """In CI nothing of the test bed is skipped: such a report becomes a failure that says why."""
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    if report.skipped and lack_is_failure() and item.get_closest_marker("cluster") is not None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"a test of the test bed may not be skipped in CI: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def no_stray_loop() -> Iterator[None]:
    """A loop that pytest-asyncio finds before the first test: it would make one, and never close it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def needs_kubelets() -> None:
    """Asked for by tests that make beds with kubelets themselves, so that they are skipped where there can be none."""


@pytest.fixture(scope="session")
def kubelet_bed(needs_kubelets: None) -> Iterator[Bed]:
    """Two real nodes, controller-manager and scheduler, shared by the session: use a namespace of your own."""
    options = BedOptions(kubelets=2, controller_manager=True, scheduler=True, images=(BUSYBOX, WORKLOAD))
    with Bed(options) as bed:
        yield bed


@pytest.fixture(scope="session")
def kwok_bed() -> Iterator[Bed]:
    """KWOK, controller-manager and scheduler, shared by the session: add nodes with a prefix of your own."""
    with Bed(BedOptions(kwok=True, controller_manager=True, scheduler=True)) as bed:
        yield bed


@pytest.fixture
def new_bed() -> Iterator[Callable[[BedOptions], Bed]]:
    """Makes beds that end with the test, for tests that break things."""
    made: list[Bed] = []

    def make(options: BedOptions) -> Bed:
        bed = Bed(options)
        made.append(bed)
        return bed

    yield make
    for bed in made:
        bed.stop()


@pytest.fixture
def kubelet_namespace(kubelet_bed: Bed) -> Iterator[str]:
    """A namespace of the test's own on the shared real nodes."""
    with kubelet_bed.namespace() as name:
        yield name


@pytest.fixture
def kwok_namespace(kwok_bed: Bed) -> Iterator[str]:
    """A namespace of the test's own on the shared KWOK bed."""
    with kwok_bed.namespace() as name:
        yield name
