"""The spending of a queue's credit: a PodGroup that the credit covers is created already admitted, and so are its pods.

The scheduler writes into the status of the Queue how much may be admitted without it, and which PodGroups it knew then.
All newer PodGroups count against that, regardless of who created them, until a newer credit includes them. So a
restarted program knows from its first lists how much is left, and once the credit of an absent scheduler is spent,
PodGroups wait for the scheduler again.
"""

from collections import Counter
from typing import NamedTuple

from baton.kube.store import Delta, Store, key_of, version_of
from baton.mapping.cluster import group_queue, min_resources
from baton.model.ids import Key
from baton.model.names import DEFAULT_QUEUE, QueueState
from baton.model.numerals import whole_number
from baton.model.quantities import Amounts, QuantityError, amounts
from baton.model.volcano import PodGroup, PodGroupSpec, Queue

_NOT_MADE_YET = 2**63


class _Spent(NamedTuple):
    version: int
    amounts: Amounts


class _Account:
    """The account of one queue."""

    def __init__(self) -> None:
        self.as_of = 0
        self.credit: dict[str, int] = {}
        self.spent: dict[Key, _Spent] = {}
        self.total: Counter[str] = Counter()

    def put(self, key: Key, spent: _Spent) -> None:
        self.drop(key)
        self.spent[key] = spent
        self.total.update(dict(spent.amounts))

    def drop(self, key: Key) -> None:
        spent = self.spent.pop(key, None)
        if spent is not None:
            self.total.subtract(dict(spent.amounts))

    def covers(self, wanted: Amounts) -> bool:
        return all(self.total[name] + amount <= self.credit.get(name, 0) for name, amount in wanted if amount)


class QueueCredits:
    """The remaining credit of each queue."""

    def __init__(self, queues: Store[Queue], groups: Store[PodGroup]) -> None:
        self._queues = queues
        self._accounts: dict[str, _Account] = {}
        queues.subscribe(self._queue_changed)
        groups.subscribe(self._group_changed)

    def spend(self, key: Key, spec: PodGroupSpec) -> bool:
        """Whether the credit admits a PodGroup that is to be created. It then counts until `made` or `not_made`."""
        name = spec.queue or DEFAULT_QUEUE
        queue, account = self._queues.get(Key(name)), self._accounts.get(name)
        wanted = min_resources(spec)
        if queue is None or queue.status.state != QueueState.OPEN or account is None or wanted is None:
            return False
        if not account.covers(wanted):
            return False
        account.put(key, _Spent(_NOT_MADE_YET, wanted))
        return True

    def made(self, group: PodGroup) -> None:
        """The API server created it: from now on a newer credit may include it."""
        self._count(group)

    def not_made(self, key: Key, queue: str) -> None:
        """No answer confirmed the creation. If the watch has shown the PodGroup nevertheless, it stays counted."""
        account = self._accounts.get(queue or DEFAULT_QUEUE)
        spent = account.spent.get(key) if account is not None else None
        if account is not None and spent is not None and spent.version == _NOT_MADE_YET:
            account.drop(key)

    def _queue_changed(self, delta: Delta[Queue]) -> None:
        if delta.new is None:
            self._accounts.pop(delta.key, None)
            return
        account = self._accounts.setdefault(delta.key, _Account())
        given = delta.new.status.credit
        try:
            credit = dict(amounts(given.amounts))
        except QuantityError:
            credit = {}
        as_of = whole_number(given.as_of)
        account.credit = credit if as_of is not None else {}
        account.as_of = as_of if as_of is not None and credit else 0
        for key in [key for key, spent in account.spent.items() if spent.version <= account.as_of]:
            account.drop(key)

    def _group_changed(self, delta: Delta[PodGroup]) -> None:
        if delta.new is None:
            account = self._accounts.get(group_queue(delta.old)) if delta.old is not None else None
            if account is not None:
                account.drop(delta.key)
        elif delta.old is None:
            self._count(delta.new)

    def _count(self, group: PodGroup) -> None:
        account = self._accounts.setdefault(group_queue(group), _Account())
        version, known = version_of(group), account.spent.get(key_of(group))
        if known is not None and known.version == version:
            return
        try:
            wanted = min_resources(group.spec)
        except QuantityError:
            wanted = None
        if version > account.as_of and wanted:
            account.put(key_of(group), _Spent(version, wanted))
        else:
            account.drop(key_of(group))
