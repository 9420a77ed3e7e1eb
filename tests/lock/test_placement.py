"""Programs that start at once are spread over the GPUs as if they had started one after the other."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from baton.errors import BatonError
from baton.lock.config import Config
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU_TEXT, Peer

pytestmark = pytest.mark.process

GPUS = [GPU_TEXT, "GPU-00000000-0000-0000-0000-00000000000b", "GPU-00000000-0000-0000-0000-00000000000c"]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with running(tmp_path, Config(), [(gpu, 16 * 2**30) for gpu in GPUS]) as one:
        yield one


def test_a_choice_counts_before_the_program_registers(nursery: Nursery) -> None:
    with ExitStack() as runs:
        chosen = [runs.enter_context(nursery.control.choosing(f"run-{number}", 2)) for number in range(3)]
        assert Counter(gpu for gpus in chosen for gpu in gpus) == dict.fromkeys(GPUS, 2)


def test_a_choice_is_forgotten_when_the_run_ends(nursery: Nursery) -> None:
    for number in range(4):
        with nursery.control.choosing(f"run-{number}", 1) as gpus:
            assert gpus == GPUS[:1]


def test_a_program_that_has_registered_is_counted_once(nursery: Nursery) -> None:
    with nursery.control.choosing("first", 1) as gpus, Peer(nursery.sockets) as peer:
        assert gpus == GPUS[:1]
        peer.introduce(run="first")
        peer.ask()  # on the first GPU
        assert nursery.control.status().clients[0].run == "first"
        with nursery.control.choosing("second", 1) as second, nursery.control.choosing("third", 1) as third:
            assert [*second, *third] == GPUS[1:]
            with nursery.control.choosing("fourth", 1) as fourth:
                assert fourth == GPUS[:1]


def test_a_request_for_more_gpus_than_exist_is_refused(nursery: Nursery) -> None:
    with pytest.raises(BatonError, match="--gpus is 4, but this machine has 3"), nursery.control.choosing("run", 4):
        pass
