"""Overrides are kept over restarts, but only for as long as they make sense."""

import os
from pathlib import Path

import pytest

from baton.lock.config import Config, Rule
from baton.lock.control import DropRule, SetClient, SetRule
from baton.lock.core.events import ClientId, Terms
from baton.lock.daemon.journal import Snapshot, TermsRecord
from baton.lock.daemon.overrides import Overrides
from baton.lock.wire import Kind
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU_TEXT, Peer

CARDS = [(GPU_TEXT, 16 * 2**30)]
POD, OTHER = Rule(pod_uid="c0ffee", cores_percent=30), Rule(pod_uid="decaf", cores_percent=40)
EVERYBODY = Rule(namespace="research-*", weight=2)


def weight_of(nursery: Nursery, peer: Peer) -> float:
    return next(c.weight for c in nursery.control.status().clients if c.id == f"{peer.id:016x}")


def restart(nursery: Nursery, config: Config = Config()) -> None:
    nursery.end()
    nursery.start(config, CARDS)


@pytest.mark.process
def test_a_rule_outlives_a_daemon_that_is_killed(tmp_path: Path) -> None:
    configured = Config(rules=(Rule(uid=os.getuid(), weight=2),))
    rule = Rule(uid=os.getuid(), weight=5)
    with running(tmp_path, configured, CARDS) as nursery:
        nursery.control.send(SetRule(rule))
        restart(nursery, configured)
        with Peer(nursery.sockets) as peer:
            assert weight_of(nursery, peer) == 5
        nursery.control.send(DropRule(rule))
        restart(nursery, configured)
        with Peer(nursery.sockets) as peer:
            assert weight_of(nursery, peer) == 2


@pytest.mark.process
def test_the_terms_of_a_client_last_as_long_as_the_client(tmp_path: Path) -> None:
    with running(tmp_path, Config(), CARDS) as nursery:
        with Peer(nursery.sockets) as before, Peer(nursery.sockets) as stranger:
            before.introduce(name="train.py")
            nursery.control.send(SetClient(f"{before.id:016x}", weight=7))
            assert weight_of(nursery, before) == 7
            assert weight_of(nursery, stranger) == 1
            restart(nursery)
        with Peer(nursery.sockets) as back, Peer(nursery.sockets) as stranger:
            back.introduce(name="train.py")
            back.tell(Kind.RESUME, epoch=before.hello["epoch"], id=f"{before.id:016x}", holding=0, waiting=0)
            back.expect(Kind.LIMITS)
            assert weight_of(nursery, back) == 7
            assert weight_of(nursery, stranger) == 1


def test_a_rule_for_a_pod_that_is_gone_is_forgotten() -> None:
    overrides = Overrides.restore(Snapshot(rules=[POD, OTHER, EVERYBODY]))
    assert overrides.forget_pods({"c0ffee"}) == [OTHER]
    assert overrides.rules == [POD, EVERYBODY]


def test_a_rule_that_was_set_again_is_kept() -> None:
    overrides = Overrides.restore(Snapshot(rules=[POD, OTHER]))
    overrides.set_rule(OTHER)
    assert overrides.forget_pods(set()) == [POD]
    assert overrides.forget_pods(set()) == []
    assert overrides.rules == [OTHER]


def test_a_rule_set_by_command_replaces_the_configured_one_for_the_same_clients() -> None:
    overrides = Overrides.restore(Snapshot(rules=[EVERYBODY]))
    configured = [Rule(namespace="research-*", weight=9), Rule(uid=4)]
    assert overrides.before(configured) == [EVERYBODY, configured[1]]


def test_only_the_terms_of_the_latest_clients_are_remembered() -> None:
    overrides = Overrides.restore(Snapshot(terms=[TermsRecord(1, Terms(weight=3))]))
    for number in range(2, 300):
        overrides.set_terms(ClientId(number), Terms(weight=2))
    assert len(overrides.records()) == 256
    assert overrides.inherit_terms(ClientId(1), ClientId(1000)) is None
    assert overrides.inherit_terms(ClientId(299), ClientId(1000)) == Terms(weight=2)
    assert overrides.inherit_terms(ClientId(299), ClientId(1001)) is None
