"""The agent and the lock daemon: answers within a limit, and limits that follow the pod."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from baton.agent.config import Sharing
from baton.agent.node.lock_port import LockClient, PodLimits
from baton.agent.offers.slot_choice import CardLoad
from baton.errors import UnavailableError
from baton.gpu.cards import Sample
from baton.lock.config import Config
from baton.lock.control import DropRule, SetCard
from baton.lock.daemon.daemon import LockDaemon
from baton.lock.paths import Paths
from baton.lock.telemetry import CardInfo, NoTelemetry
from baton.model.ids import CardId, PodUid
from baton.model.ids import CardId as LockCardId

PATIENT_S = 60.0
"""For tests that are not about the limit."""
CARD = "GPU-5f2c1a30-9d1b-4c39-8c4e-0d6c2f7f3b11"


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="baton-") as name:
        (Path(name) / "lock").mkdir()
        yield Path(name) / "lock"


@pytest.fixture
async def daemon(directory: Path) -> AsyncIterator[LockDaemon]:
    found = LockDaemon(Paths(directory), Config(), NoTelemetry([CardInfo(LockCardId(CARD), 16 << 30)]))
    await found.start()
    yield found
    await found.stop()


def samples() -> tuple[Sample, ...]:
    return (Sample(CardId(CARD), 75, 4096, 16384, 60, 100.0, 250.0, 1500, None, None),)


async def test_load_is_clients_that_want_the_card_with_what_the_driver_measures(
    daemon: LockDaemon, directory: Path
) -> None:
    assert await LockClient(directory, samples, PATIENT_S).loads() == {CARD: CardLoad(0, 75, 25)}


async def test_without_a_daemon_there_is_no_answer(directory: Path) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    assert await client.loads() is None
    assert await client.limit(list) is True
    assert await client.limit(lambda: [PodLimits(PodUid("u"), 100)]) is False
    assert await client.share({CardId(CARD): Sharing.CONCURRENT}) is False


async def test_a_hanging_daemon_is_abandoned_within_the_limit(directory: Path) -> None:
    """It accepts the connection and never answers, like a stopped process."""
    held = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_unix_server(silent, str(Paths(directory).control))
    client = LockClient(directory, samples, 0.05)
    load = asyncio.create_task(client.loads())
    command = asyncio.create_task(client.limit(lambda: [PodLimits(PodUid("u"), 100)]))
    first, _ = await asyncio.wait({load, command}, return_when=asyncio.FIRST_COMPLETED)
    assert load in first, "other commands are more patient; kubelet must not wait for as long"
    assert load.result() is None
    assert await command is False
    server.close()
    for writer in held:
        writer.close()


async def test_limits_follow_the_pod_by_its_uid_and_leave_with_it(daemon: LockDaemon, directory: Path) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    one = PodLimits(PodUid("uid-1"), memory_mib=2048, cores_percent=30, oversubscribe=False)
    assert await client.limit(lambda: [one])
    (rule,) = daemon.rules
    assert (rule.pod_uid, rule.memory_bytes, rule.cores_percent, rule.oversubscribe) == (
        "uid-1",
        2048 << 20,
        30.0,
        False,
    )
    assert await client.limit(list)
    assert daemon.rules == []


async def test_a_limit_that_was_already_dropped_does_not_block_others(daemon: LockDaemon, directory: Path) -> None:
    """An operator dropped it, or the daemon did and its answer came too late."""
    client = LockClient(directory, samples, PATIENT_S)
    assert await client.limit(lambda: [PodLimits(PodUid("uid-1"), memory_mib=2048)])
    daemon.control(DropRule(daemon.rules[0]))
    assert await client.limit(lambda: [PodLimits(PodUid("uid-2"), memory_mib=1024)])
    assert [rule.pod_uid for rule in daemon.rules] == ["uid-2"]


async def test_limits_stay_in_force_while_they_cannot_be_determined(daemon: LockDaemon, directory: Path) -> None:
    def unknown() -> list[PodLimits]:
        raise UnavailableError("kubelet's records cannot be read")

    client = LockClient(directory, samples, PATIENT_S)
    assert await client.limit(lambda: [PodLimits(PodUid("uid-1"), memory_mib=2048)])
    assert await client.limit(unknown) is False
    assert [rule.pod_uid for rule in daemon.rules] == ["uid-1"]


async def test_a_request_beyond_one_card_is_capped_at_the_whole_card(daemon: LockDaemon, directory: Path) -> None:
    """Kubelet gives out 200 units of cores for two cards; the daemon counts per card and accepts at most 100."""
    client = LockClient(directory, samples, PATIENT_S)
    pods = [PodLimits(PodUid("uid-1"), cores_percent=200), PodLimits(PodUid("uid-2"), cores_percent=30)]
    assert await client.limit(lambda: pods)
    assert {rule.pod_uid: rule.cores_percent for rule in daemon.rules} == {"uid-1": 100.0, "uid-2": 30.0}


async def test_an_earlier_view_of_the_pods_does_not_undo_a_later_one(daemon: LockDaemon, directory: Path) -> None:
    """Two containers start at once: the call that gets its turn last sends the limits of that moment."""
    client = LockClient(directory, samples, PATIENT_S)
    pods = [PodLimits(PodUid("uid-1"), memory_mib=2048)]
    calls = [asyncio.create_task(client.limit(lambda: list(pods))) for _ in range(2)]
    pods.append(PodLimits(PodUid("uid-2"), memory_mib=1024))
    assert await asyncio.gather(*calls) == [True, True]
    assert {rule.pod_uid for rule in daemon.rules} == {"uid-1", "uid-2"}


async def test_a_restarted_daemon_receives_the_limits_again(daemon: LockDaemon, directory: Path) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    limits = [PodLimits(PodUid("uid-1"), memory_mib=2048)]
    await client.limit(lambda: limits)
    daemon.rules.clear()
    assert await client.limit(lambda: limits)
    assert daemon.rules == [], "nothing is repeated to the same daemon"
    daemon.epoch = "another"
    assert await client.limit(lambda: limits)
    assert len(daemon.rules) == 1


async def test_any_request_that_notices_a_restarted_daemon_restores_the_limits(
    daemon: LockDaemon, directory: Path
) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    await client.limit(lambda: [PodLimits(PodUid("uid-1"), memory_mib=2048)])
    daemon.rules.clear()
    daemon.epoch = "another"
    assert await client.share({})
    assert [rule.pod_uid for rule in daemon.rules] == ["uid-1"]


async def test_sharing_modes_are_set_and_auto_is_left_to_the_daemon(daemon: LockDaemon, directory: Path) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    assert await client.share({CardId(CARD): Sharing.AUTO})
    assert daemon.core.cards[LockCardId(CARD)].mode.value == "auto"
    assert await client.share({CardId(CARD): Sharing.CONCURRENT})
    assert daemon.core.cards[LockCardId(CARD)].mode.value == "concurrent"


async def test_a_restarted_daemon_receives_the_sharing_modes_again(daemon: LockDaemon, directory: Path) -> None:
    client = LockClient(directory, samples, PATIENT_S)
    assert await client.share({CardId(CARD): Sharing.CONCURRENT})
    daemon.control(SetCard(CARD, mode="auto"))
    assert await client.share({CardId(CARD): Sharing.CONCURRENT})
    assert daemon.core.cards[LockCardId(CARD)].mode.value == "auto", "a mode that an operator set stays"
    daemon.epoch = "another"
    assert await client.share({CardId(CARD): Sharing.CONCURRENT})
    assert daemon.core.cards[LockCardId(CARD)].mode.value == "concurrent"
