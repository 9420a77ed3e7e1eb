"""Equal tasks share one signature, and the scores of a signature are cached between placements.

`score` has one number per node: the sum of the plugins' scores where the task fits now, -inf elsewhere; `later` has the
same for nodes where it fits only once evicted pods are gone. Before each use, a signature catches up with the rows that
changed since its last use, in one batch, or starts over if many rows changed.

A run of equal pods is the common case and would cost a batch of one row per pod. So the row that was just used is
scored for several placements ahead (a `Trajectory`): the cards of each placement are picked in advance, and the states
in between are scored in one batch, together with those of the rows that come next. Each state has a token; as long as
the row has the token that the trajectory left, the next score and the next cards are already known.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from baton.engine.cards.choice import Assignment
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import FUTURE, NOW, Array, Floats, Rows
from baton.engine.state.jobs import Task
from baton.engine.state.nodes import NodeView

TRAJECTORY_STEPS = 16
ROWS_AHEAD = 8
MOST_ROWS_AHEAD = 64
FULL_BATCH_FRACTION = 4
CACHE_BYTES = 256 * 1024 * 1024
NEVER = -np.inf

Key = tuple[object, ...]


class Judge(Protocol):
    """The provider of filters and scores: `Places`."""

    def fit_and_score(self, task: Task, nodes: NodeView) -> Floats: ...

    def fit_now(self, task: Task, nodes: NodeView) -> npt.NDArray[np.bool_]: ...

    def pick_cards(self, task: Task, row: int, plane: int) -> Assignment | None: ...

    def foresee_cards(self, task: Task, row: int, steps: int) -> tuple[list[Assignment], Array]: ...

    def signature_key(self, task: Task) -> Key: ...

    def repeatable(self, task: Task) -> bool: ...


class Trajectory(NamedTuple):
    """The states of one row under repeated placement of one signature: state 0 is the present one."""

    tokens: Sequence[int]
    scores: Sequence[float]
    assignments: Sequence[Assignment]
    """assignments[i] leads from state i to state i + 1."""


class Signature:
    """Scores of one kind of task over all nodes."""

    __slots__ = (
        "ahead_row",
        "best_row",
        "cursor",
        "epoch",
        "last_row",
        "later",
        "nowhere",
        "plain",
        "rows",
        "score",
        "steps",
        "trajectories",
    )

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain
        """Whether placing one task changes only the room on its node for the next one."""
        self.epoch = -1
        self.cursor = 0
        self.score: Floats = np.empty(0)
        self.later: Floats | None = None
        self.best_row = -1
        """The first row with the highest score, or -1 if it is not known."""
        self.last_row = -1
        self.ahead_row = -1
        self.steps = 4
        self.rows = ROWS_AHEAD
        """How many rows the next look-ahead covers."""
        self.trajectories: dict[int, tuple[Trajectory, int]] = {}
        self.nowhere = (-1, -1, False)
        """Epoch and position in the log of changes, and whether at that point no node would take the task, now or
        later."""

    def best(self) -> int:
        """The first row with the highest score."""
        if self.best_row < 0:
            self.best_row = int(self.score.argmax())
        return self.best_row

    def is_nowhere(self) -> bool:
        """Whether no node would take the task, now or once evicted pods are gone; cached until a node changes."""
        epoch, cursor, nowhere = self.nowhere
        if epoch != self.epoch or cursor != self.cursor:
            both = [scores for scores in (self.score, self.later) if scores is not None and len(scores)]
            nowhere = all(scores.max() == NEVER for scores in both)
            self.nowhere = (self.epoch, self.cursor, nowhere)
        return nowhere


class SignatureCache:
    """Signatures by key; the least recently used is dropped first. Each engine has one cache."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._kept: OrderedDict[Key, Signature] = OrderedDict()
        self._revision: object = None
        self._generation = 0

    def start_session(self, revision: object) -> None:
        """Drop all signatures if the plugins' results differ from those in the last session."""
        if revision != self._revision:
            self._kept.clear()
            self._revision = revision
            self._generation += 1

    def of(self, task: Task, judge: Judge) -> Signature:
        stamp = (self._state.placed.epoch, self._generation)
        if task._signature is not None and task._signature_stamp == stamp:
            return task._signature
        key = judge.signature_key(task)
        signature = self._kept.get(key)
        if signature is None:
            signature = self._kept[key] = Signature(plain=judge.repeatable(task))
            limit = max(16, CACHE_BYTES // (9 * max(1, self._state.table.count)))
            while len(self._kept) > limit:
                self._kept.popitem(last=False)
                self._generation += 1
        else:
            self._kept.move_to_end(key)
        task._signature = signature
        task._signature_stamp = (self._state.placed.epoch, self._generation)
        return signature

    def refresh(self, signature: Signature, task: Task, judge: Judge) -> None:
        """Catch up with the rows that changed since the last use."""
        table = self._state.table
        if signature.epoch != table.epoch:
            self._start_over(signature, task, judge)
            return
        changes = table.changes
        behind = len(changes) - signature.cursor
        if behind == 0:
            return
        if behind == 1:
            row = changes[-1]
            signature.cursor += 1
            if row == signature.last_row and signature.plain and not table.unsettled[row]:
                self._look_ahead(signature, task, row, judge)
                return
            rows = np.array([row], dtype=np.intp)
        else:
            rows = np.array(list(set(changes[signature.cursor :])), dtype=np.intp)
            signature.cursor = len(changes)
            if len(rows) * FULL_BATCH_FRACTION > table.count:
                self._start_over(signature, task, judge)
                return
        view = table.view(rows)
        self._write(signature, rows, view, task, judge)

    def placed(self, signature: Signature, row: int) -> None:
        """Record that a task of the signature was placed on the row with the cards from `next_cards`; if the next state
        is known, move to it."""
        table = self._state.table
        signature.last_row = row
        known = signature.trajectories.get(row)
        if known is None:
            return
        trajectory, at = known
        tokens, scores, _ = trajectory
        following = at + 1
        changes = len(table.changes)
        if following >= len(scores) or signature.cursor != changes - 1:
            del signature.trajectories[row]
            return
        table.token[row] = tokens[following]
        signature.cursor = changes
        signature.score[row] = scores[following]
        if scores[following] < scores[at] or signature.best_row != row:
            # Otherwise the score of the best row has grown, and it is still the best.
            signature.best_row = -1
        if following + 1 < len(scores):
            signature.trajectories[row] = (trajectory, following)
        else:
            # Only the score of the last state is known; the states after it are computed when it is used.
            del signature.trajectories[row]

    def next_cards(self, signature: Signature, row: int) -> Assignment | None:
        """Cards already picked for the next task on this row, if the row is in the foreseen state."""
        known = signature.trajectories.get(row)
        if known is None:
            return None
        trajectory, at = known
        if self._state.table.token[row] != trajectory.tokens[at]:
            del signature.trajectories[row]
            return None
        return trajectory.assignments[at]

    def _start_over(self, signature: Signature, task: Task, judge: Judge) -> None:
        table = self._state.table
        signature.trajectories.clear()
        signature.epoch = table.epoch
        signature.cursor = len(table.changes)
        signature.score = np.empty(table.count)
        signature.later = None
        self._write(signature, None, table.view(), task, judge)

    def _write(self, signature: Signature, rows: Rows | None, view: NodeView, task: Task, judge: Judge) -> None:
        fresh = judge.fit_and_score(task, view)
        target: Rows | slice = slice(None) if rows is None else rows
        if view.planes_differ():
            now = judge.fit_now(task, view.on_plane(NOW))
            if signature.later is None:
                signature.later = np.full(len(signature.score), NEVER)
            signature.later[target] = np.where(now, NEVER, fresh)
            fresh = np.where(now, fresh, NEVER)
        elif signature.later is not None:
            signature.later[target] = NEVER
        signature.score[target] = fresh
        signature.best_row = -1

    def _look_ahead(self, signature: Signature, task: Task, row: int, judge: Judge) -> None:
        """Score the row as it is and after each of the next placements, together with similar rows.

        Array operations cost the same for one row as for many, so the rows that come next in order, those with the best
        score apart from this one, are foreseen in the same batch.
        """
        table = self._state.table
        if signature.ahead_row in signature.trajectories and row != signature.ahead_row:
            # A spreading policy leaves every trajectory after one step: look less far ahead until it pays off again.
            signature.steps = max(signature.steps // 2, 1)
        else:
            signature.steps = min(signature.steps * 2, TRAJECTORY_STEPS)
        # After a batch that was used up, try a larger one.
        signature.rows = ROWS_AHEAD if signature.trajectories else min(2 * signature.rows, MOST_ROWS_AHEAD)
        signature.ahead_row = row
        signature.best_row = -1
        rows = [row, *self._next_in_order(signature, row)]
        found: list[list[Assignment]] = []
        usages: list[Array] = []
        known: dict[bytes, tuple[list[Assignment], Array]] = {}
        for item in rows:
            steps = self._state.copies_with_room(task, item, signature.steps)
            content = table.ledger.content(item) + bytes((steps,))
            foreseen = known.get(content)
            if foreseen is None:
                foreseen = known[content] = judge.foresee_cards(task, item, steps)
            found.append(foreseen[0])
            usages.append(foreseen[1])
        lengths = [len(assignments) + 1 for assignments in found]
        repeated = np.repeat(np.array(rows, dtype=np.intp), lengths)
        states = np.concatenate([np.arange(length) for length in lengths])
        used = table.used[FUTURE].take(repeated, axis=1) + task.needs.request[:, np.newaxis] * states
        view = NodeView(table, repeated, FUTURE, used, np.concatenate(usages, axis=-1))
        scores = judge.fit_and_score(task, view).tolist()
        at = 0
        for item, assignments, length in zip(rows, found, lengths, strict=True):
            if item == row:
                signature.score[row] = scores[at]
                if signature.later is not None:
                    signature.later[row] = NEVER
            if assignments:
                tokens = [int(table.token[item]), *table.fresh_tokens(length - 1)]
                signature.trajectories[item] = (Trajectory(tokens, scores[at : at + length], assignments), 0)
            else:
                signature.trajectories.pop(item, None)
            at += length

    def _next_in_order(self, signature: Signature, row: int) -> list[int]:
        """The rows that will probably be used after this one: the first of those that share the best score."""
        score = signature.score
        own, score[row] = score[row], NEVER
        best = score.max()
        score[row] = own
        if best == NEVER:
            return []
        first: list[int] = np.flatnonzero(score == best)[: signature.rows - 1].tolist()
        unsettled = self._state.table.unsettled
        return [item for item in first if item not in signature.trajectories and not unsettled[item]]
