"""Network domains: a job is tried in one hyper node after another, and placed as a whole in one of them.

A job (or a part of it) whose pods must be close is tried in the hyper nodes of the lowest tier first, up to the highest
allowed tier, and gets the first one that takes all of it. Within a tier, hyper nodes with pods of the job come first,
then those with room for more of an elastic gang, then the fullest, then by name; this keeps the free parts of the
network large and brings a restarted pod back to its gang. A job with placed pods is only tried in domains that contain
all of them. For a job that should be close (soft), the whole cluster is tried last.

While a job is tried in a hyper node, `rows` confines every query about its pods to that hyper node; at any other time,
to the hyper nodes that the rule allows given the placed pods. Code that places or evicts for a job with a hard rule
therefore follows the rule automatically.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from baton.engine.objects import Closeness, Parts
from baton.engine.search.room import copies_at_most
from baton.engine.session.statement import Statement
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import FUTURE, Array, Floats, Rows
from baton.engine.state.hypernodes import Tier
from baton.engine.state.jobs import CHARGED, ON_NODE, READY, Job, Status, Task
from baton.engine.state.nodes import NodeTable
from baton.engine.state.resources import Vector
from baton.model.ids import GroupKey

if TYPE_CHECKING:
    from baton.engine.search.places import Places

MOST_WITH_VICTIMS = 8
"""How many hyper nodes of a tier are compared by the victims they would cost."""

Part = tuple[str, ...]
Rank = tuple[int, ...]
"""The cost of an attempt: the smallest wins, and an empty rank is perfect."""
DONE: Rank = ()
PROMISED: Rank = (1,)
"""The job gets its places once evicted pods are gone."""


class DomainView:
    """Sums over the nodes of each domain of a tier."""

    def __init__(self, table: NodeTable, tier: Tier) -> None:
        self._table = table
        self._tier = tier
        self.size = len(tier.domains)

    def allocatable(self, place: int) -> Array:
        return self._tier.sums(self._table.allocatable[place])

    def used(self, place: int) -> Array:
        return self._tier.sums(self._table.used[FUTURE, place])


class Tried(NamedTuple):
    """The result of a search that found no domain."""

    domains: int
    highest: int | None
    nearest: str
    room: int
    """The largest number of the pods that the nearest domain would take."""
    needed: int
    astray: bool
    """Whether no allowed domain contains all placed pods."""


class _Search(NamedTuple):
    """The tasks that need a domain, and the room they need."""

    closeness: Closeness
    tasks: list[Task]
    """The waiting tasks."""
    placed: Rows
    """Rows with placed pods, each once."""
    hosts: Rows
    """Rows with pods, including pods that are leaving."""
    needed: int
    """How many more pods must be placed."""


class Domains:
    """The hyper nodes of a session, and the choices made among them."""

    def __init__(self, state: ClusterState, places: "Places") -> None:
        self._state = state
        self._places = places
        self._forest = state.forest
        self._chosen: dict[tuple[GroupKey, Part | None], Rows] = {}
        self.tried: dict[GroupKey, Tried] = {}
        """The searches of jobs that found no domain."""

    def rows(self, task: Task) -> Rows | None:
        """The rows that the network rules allow for the task; None for all."""
        job = task.job
        if job is None or not job.group.close:
            return None
        rule = self.rule(job, task)
        part = job.part_of(task) if rule is not None else None
        narrow = self._chosen.get((job.key, part)) if part is not None else None
        if narrow is not None:
            return narrow
        rows = self._chosen.get((job.key, None))
        if rows is None and job.group.closeness is not None:
            rows = self._allowed(job.group.closeness, _rows_in(job, CHARGED))
        if rule is None or rule.closeness is None:
            return rows
        own = self._allowed(rule.closeness, _rows_in(job, CHARGED, part))
        return own if rows is None else rows if own is None else np.intersect1d(rows, own, assume_unique=True)

    @staticmethod
    def rule(job: Job, task: Task) -> Parts | None:
        """The rule of the task's part, if that part must or should be close."""
        if not any(parts.closeness is not None for parts in job.group.parts):
            return None
        part = job.part_of(task)
        if part is None:
            return None
        rule = next(parts for parts in job.group.parts if parts.name == part[0])
        return rule if rule.closeness is not None else None

    def attempt(
        self,
        job: Job,
        statement: Statement,
        place: Callable[[], Rank | None],
        *,
        tasks: Sequence[Task] = (),
        evicting: bool = False,
    ) -> Rank | None:
        """Run `place` in one domain after another until it succeeds; failed attempts are rolled back.

        With `tasks`, the members of one part, choose the domain of that part within the domain of the job. With
        `evicting`, full domains are tried as well, the domains of a tier are compared by rank, and soft rules do not
        apply: no pod is evicted for a preference.
        """
        part = job.part_of(tasks[0]) if tasks else None
        rule = self.rule(job, tasks[0]) if tasks else None
        closeness = rule.closeness if rule is not None else job.group.closeness if part is None else None
        if closeness is None or (evicting and not closeness.hard):
            return place()
        search = self._search(job, closeness, rule, part, tasks or list(job.pending.values()))
        outer = self._chosen.get((job.key, None)) if part is not None else None
        key = (job.key, part)
        try:
            for tier in self._forest.up_to(closeness):
                best: tuple[Rank, Rows] | None = None
                options = self._options(tier, search, outer, evicting=evicting)
                for rows in options[:MOST_WITH_VICTIMS] if evicting else options:
                    self._chosen[key] = rows
                    mark = statement.checkpoint()
                    rank = place()
                    if rank == DONE:
                        return rank
                    statement.rollback(mark)
                    if rank is not None and (best is None or rank < best[0]):
                        best = (rank, rows)
                if best is not None:
                    self._chosen[key] = best[1]
                    return place()
        finally:
            self._chosen.pop(key, None)
        if not closeness.hard:
            return place()
        if part is None:
            self.tried[job.key] = self._tried(search)
        return None

    def could_hold(self, job: Job) -> list[Rows] | None:
        """The rows of each domain that could take the whole job if other pods left; None without a hard rule."""
        closeness = job.group.closeness
        if closeness is None or not closeness.hard:
            return None
        search = self._search(job, closeness, None, None, list(job.pending.values()))
        return [
            rows for tier in self._forest.up_to(closeness) for rows in self._options(tier, search, None, evicting=True)
        ]

    def fill(
        self,
        job: Job,
        waiting: list[Task],
        statement: Statement,
        place: Callable[[Task], bool],
        enough: Callable[[list[Task]], bool],
        *,
        all_or_nothing: bool = False,
        evicting: bool = False,
    ) -> bool:
        """Place tasks from the end of the list, a close part at a time, until `enough` holds for the last placed ones.

        The tasks that remain in the list have not been tried. True if `enough` was reached. With `all_or_nothing`, the
        first task without a place stops the loop; a part without a place does not, because the gang may have more parts
        than it needs.
        """
        close_parts = job.group.close and any(parts.closeness is not None for parts in job.group.parts)
        while waiting:
            task = waiting.pop()
            if not close_parts or self.rule(job, task) is None:
                if not place(task):
                    if all_or_nothing:
                        return False
                elif enough([task]):
                    return True
                continue
            members, part = [task], job.part_of(task)
            while waiting and job.part_of(waiting[-1]) == part:
                members.append(waiting.pop())
            if self._whole(job, members, statement, place, evicting=evicting) and enough(members):
                return True
        return False

    def _whole(
        self, job: Job, members: list[Task], statement: Statement, place: Callable[[Task], bool], *, evicting: bool
    ) -> bool:
        """Place all waiting members of one part in one domain, or none of them."""

        def every() -> Rank | None:
            before = len(statement.evicted)
            if not all(place(member) for member in members if member.status is Status.PENDING):
                return None
            later = any(member.status is Status.PIPELINED for member in members)
            return (1, len(statement.evicted) - before) if later else DONE

        mark = statement.checkpoint()
        if self.attempt(job, statement, every, tasks=members, evicting=evicting) is not None:
            return True
        statement.rollback(mark)
        return False

    def _allowed(self, closeness: Closeness, placed: Rows) -> Rows | None:
        """All rows of the domains that a hard rule allows, given the placed pods."""
        if not closeness.hard:
            return None
        mask = np.zeros(self._state.table.count, dtype=np.bool_)
        for tier in self._forest.up_to(closeness):
            holding = tier.holding(placed)
            for place in np.flatnonzero(holding):
                mask[tier.domains[place].rows] = True
        return np.flatnonzero(mask)

    def _search(
        self, job: Job, closeness: Closeness, rule: Parts | None, part: Part | None, waiting: Sequence[Task]
    ) -> _Search:
        tasks = [task for task in waiting if not task.needs.best_effort] or list(waiting)
        if rule is None:
            lacking = job.min_member - job.ready_count()
        else:
            lacking = rule.size - job.part_counts(READY).get(part or (), 0)
        needed = min(max(lacking, 1), len(tasks))
        return _Search(closeness, tasks, _rows_in(job, CHARGED, part), _rows_in(job, ON_NODE, part), needed)

    def _options(self, tier: Tier, search: _Search, outer: Rows | None, *, evicting: bool) -> list[Rows]:
        """The rows of each domain of the tier that may take all the tasks, best domain first."""
        count = self._state.table.count
        ok = tier.holding(search.placed)
        if outer is not None:
            inside = np.zeros(count, dtype=np.int64)
            inside[outer] = 1
            ok &= tier.sums(inside) > 0
        room = np.minimum(self._room(tier, search, evicting=evicting), len(search.tasks))
        ok &= room >= search.needed
        chosen = np.flatnonzero(ok)
        if not len(chosen):
            return []
        hosts = np.zeros(count, dtype=np.int64)
        hosts[search.hosts] = 1
        scores = self._places.domain_scores(_least(search.tasks) * search.needed, DomainView(self._state.table, tier))
        order = np.lexsort((chosen, -scores[chosen], -room[chosen], -tier.sums(hosts)[chosen]))
        found = [tier.domains[int(chosen[place])].rows for place in order]
        return found if outer is None else [np.intersect1d(rows, outer, assume_unique=True) for rows in found]

    def _room(self, tier: Tier, search: _Search, *, evicting: bool) -> Array:
        """Upper bound for the number of the pods that each domain would take, by resources and cards."""
        table = self._state.table
        one = search.tasks[0]
        if not evicting and all(task.needs is one.needs for task in search.tasks):
            copies = copies_at_most(one, table.view())
            copies[~self._places.would_take(one)] = 0
        else:
            least = _least(search.tasks)
            copies = np.full(table.count, len(search.tasks), dtype=np.int64)
            for place in np.flatnonzero(least):
                free = table.allocatable[place, : table.count]
                if not evicting:
                    free = free - table.used[FUTURE, place, : table.count]
                copies = np.minimum(copies, np.maximum(free, 0) // least[place])
            copies[~table.present[: table.count]] = 0
        return tier.sums(np.minimum(copies, len(search.tasks)))

    def _tried(self, search: _Search) -> Tried:
        number, nearest, room = 0, "", 0
        for tier in self._forest.up_to(search.closeness):
            ok = tier.holding(search.placed)
            number += int(ok.sum())
            rooms = np.where(ok, self._room(tier, search, evicting=False), -1)
            best = int(rooms.argmax())
            if rooms[best] > room or (not nearest and ok[best]):
                nearest, room = tier.domains[best].name, int(rooms[best])
        highest = self._forest.named_tier(search.closeness)
        return Tried(number, highest, nearest, room, search.needed, astray=bool(len(search.placed)) and not number)


def tightness(need: Vector, domains: DomainView, weights: Callable[[int], int]) -> Floats:
    """How full each domain would be with the need in it, 0 to 1: the weighted mean over the requested resources."""
    total, weight_sum = np.zeros(domains.size), 0
    for place in np.flatnonzero(need).tolist():
        weight = weights(place)
        if weight <= 0:
            continue
        total += weight * ((domains.used(place) + need[place]) / np.maximum(domains.allocatable(place), 1))
        weight_sum += weight
    return total / max(weight_sum, 1)


def _least(tasks: Sequence[Task]) -> Vector:
    """The elementwise minimum of the tasks' requests."""
    least: Vector = np.minimum.reduce([task.needs.request for task in tasks])
    return least


def _rows_in(job: Job, statuses: frozenset[Status], part: Part | None = None) -> Rows:
    """The distinct rows with tasks of the job (or of one part) in one of the statuses."""
    rows = {
        task.row
        for task in job.tasks.values()
        if task.row >= 0 and task.status in statuses and (part is None or job.part_of(task) == part)
    }
    return np.array(sorted(rows), dtype=np.intp)
