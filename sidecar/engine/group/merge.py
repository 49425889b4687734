"""Merges the views that instances publish into one view per partition.

The status records of a partition come from its owner, and around a hand-over also from a former owner that does not
know yet. Two questions are answered from them:

* **How many are pending?** The *figure*: of the complete records stamped within FIGURE_AGE_MAX_MS before the youngest,
  the one whose state was restored last, then the one with the highest sequence, then the latest. A former owner that
  wakes up restored its state earlier. After a restore from a changelog that was rolled back or recreated, sequences
  begin anew at a lower one.
* **Who owns it, in which state?** The *holder*: the figure itself, or a later incomplete record. While a partition is
  handed over or restored its counters are partial, so it keeps the last figure, with its true age.

Both depend only on the set of records, not on their order. Ages are measured by the broker's clock, which stamps every
status record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sidecar.contract.status import OutcomeRecord
from sidecar.engine.group.activity import Activity
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS, PartitionView

UNKNOWN: Final = "unknown"
"""State of a partition without a recent status record."""
WHOLE_STATES: Final = frozenset({"running", "closed"})
"""States in which a partition's counters can be complete; `closed` is the last record of an owner that releases it."""
FIGURES_MAX: Final = 64
OUTCOMES_MAX: Final = 10_000
OUTCOME_AGE_MAX_MS: Final = 3_600_000
OWN_OFFSET: Final = 2**63 - 1

_NOTHING: Final = PartitionView(partition=0, state=UNKNOWN, owner="", url=None)


class StatusPosition(NamedTuple):
    """The order of status records within a partition: by time first, which survives a recreated topic."""

    stamped_ms: int
    """By the broker's clock."""
    offset: int


class Start(NamedTuple):
    """The start of a process, as it was published."""

    position: StatusPosition
    process: bytes
    """Its random id."""


@dataclass(frozen=True, slots=True)
class Published:
    """A view as it was published."""

    view: PartitionView
    position: StatusPosition

    @property
    def is_figure(self) -> bool:
        """Whether its counters are complete."""
        return self.view.state in WHOLE_STATES and self.view.restored >= 1

    @property
    def rank(self) -> tuple[int, int, StatusPosition]:
        """The sort key of figures; the best one has the greatest."""
        return self.view.restored_ms, self.view.sequence, self.position


@dataclass(frozen=True, slots=True)
class Standing:
    """The merged status records of one partition."""

    figures: tuple[Published, ...] = ()
    """The best figure, then those that may become it when better ones expire."""
    unfinished: Published | None = None
    """The latest incomplete record."""
    latest_activity: tuple[StatusPosition, Activity] | None = None
    """The latest activity: a new owner omits it until it has joined that of its predecessor."""

    @property
    def activity(self) -> Activity | None:
        """The activity of the best figure, else the latest one."""
        best = self.figures[0].view.activity if self.figures else None
        return best or (None if self.latest_activity is None else self.latest_activity[1])

    def joined(self, record: Published) -> Standing:
        """Return the state merged with a record; independent of order and repetition."""
        activity, latest_activity = record.view.activity, self.latest_activity
        if activity is not None and (latest_activity is None or latest_activity[0] < record.position):
            latest_activity = (record.position, activity)
        if not record.is_figure:
            before = self.unfinished
            latest = before if before and before.position >= record.position else record
            return replace(self, unfinished=latest, latest_activity=latest_activity)
        figures = {each.position: each for each in (*self.figures, record)}
        return replace(self, latest_activity=latest_activity, figures=_contenders(figures.values()))

    def view(self, partition: int, *, broker_ms: int, now_ms: int, absent: str = "") -> PartitionView:
        """Return the public view of the partition.

        Args:
            partition: Its number.
            broker_ms: The broker's clock now.
            now_ms: This machine's clock now; the returned `as_of_ms` uses it, and is 0 without a figure.
            absent: An instance that is known not to own the partition, whatever its records say.
        """
        figure = self.figures[0] if self.figures else None
        holder = self.unfinished
        if figure is not None and (holder is None or holder.position < figure.position):
            holder = figure
        if holder is None:
            return replace(_NOTHING, partition=partition)
        shown = holder.view
        heard_ms = holder.position.stamped_ms
        gone = broker_ms - heard_ms >= FIGURE_AGE_MAX_MS or (bool(absent) and shown.owner == absent)
        counted = (figure or holder).view
        return replace(
            counted,
            state=UNKNOWN if gone else shown.state,
            owner="" if gone else shown.owner,
            url=None if gone else shown.url,
            restored=shown.restored,
            restore_remaining=shown.restore_remaining,
            lag=shown.lag,
            release=shown.release,
            reason="" if gone else shown.reason,
            as_of_ms=0 if figure is None else now_ms - max(0, broker_ms - figure.position.stamped_ms),
            activity=self.activity,
        )


def _contenders(figures: Iterable[Published]) -> tuple[Published, ...]:
    """Return the figures that are or can become the best: best first, each younger than the previous ones.

    A figure that ranks below a younger one never becomes the best, since it expires first.
    """
    ranked = sorted(figures, key=lambda each: each.rank, reverse=True)
    youngest_ms = max(each.position.stamped_ms for each in ranked)
    kept: list[Published] = []
    reached_ms = youngest_ms - FIGURE_AGE_MAX_MS
    for each in ranked:
        if each.position.stamped_ms > reached_ms:
            kept.append(each)
            reached_ms = each.position.stamped_ms
    return tuple(kept[:FIGURES_MAX])


def group_views(
    standings: Mapping[int, Standing],
    own: Sequence[PartitionView],
    *,
    instance_id: str,
    partitions_total: int | None,
    broker_ms: int,
    now_ms: int,
) -> list[PartitionView]:
    """Return one view for each input partition.

    Args:
        standings: By partition, from the status topic.
        own: The views of this instance, by its own clock; they count as published at their `as_of_ms`.
        instance_id: Id of this instance; empty for one that never owns a partition.
        partitions_total: Number of input partitions; None while unknown.
        broker_ms: The broker's clock now.
        now_ms: This machine's clock now.
    """
    mine = {view.partition: view for view in own}
    known = sorted({*standings, *mine}) if partitions_total is None else range(partitions_total)
    views = []
    for number in known:
        standing, absent = standings.get(number, Standing()), instance_id
        if (view := mine.get(number)) is not None:
            stamped_ms = broker_ms - max(0, now_ms - view.as_of_ms)
            standing = standing.joined(Published(view, StatusPosition(stamped_ms, OWN_OFFSET)))
            absent = ""
        views.append(standing.view(number, broker_ms=broker_ms, now_ms=now_ms, absent=absent))
    return views


class BrokerTime:
    """Estimates the broker's clock from the timestamps of records that are read as they are written.

    A record arrives after it was stamped. So at each arrival the broker's clock shows at least the stamp, and the
    greatest of these bounds is off by the shortest delivery time. Bounds of the last one to two SPAN_S count, so that
    the estimate follows a clock that was set back.
    """

    SPAN_S: Final = 30.0

    def __init__(self) -> None:
        self._since_s = 0.0
        self._bound_ms: float | None = None
        self._former_ms: float | None = None

    def heard(self, stamped_ms: int, arrived_s: float) -> None:
        """Add the timestamp of a record that was just written; `arrived_s` is monotonic."""
        bound_ms = stamped_ms - arrived_s * 1000
        if self._bound_ms is None or arrived_s - self._since_s >= self.SPAN_S:
            self._former_ms, self._bound_ms, self._since_s = self._bound_ms, bound_ms, arrived_s
        else:
            self._bound_ms = max(self._bound_ms, bound_ms)

    def now_ms(self, monotonic_s: float, wall_ms: int) -> int:
        """Return the estimate; this machine's wall time before the first record."""
        bounds = [bound for bound in (self._bound_ms, self._former_ms) if bound is not None]
        return round(max(bounds) + monotonic_s * 1000) if bounds else wall_ms


@dataclass(slots=True)
class _ControlOutcomes:
    stamped_ms: int
    by_partition: dict[int, tuple[int, OutcomeRecord]] = field(default_factory=dict)


class Outcomes:
    """The latest outcomes of control records: at most OUTCOMES_MAX control ids, at most OUTCOME_AGE_MAX_MS old."""

    def __init__(self) -> None:
        self._by_control_id: dict[str, _ControlOutcomes] = {}
        self._newest_ms = 0

    def add(self, control_id: str, input_offset: int, record: OutcomeRecord, stamped_ms: int) -> None:
        """Add an outcome; of several for one control id and partition, the one with the lowest input offset counts."""
        partition = record.partition
        self._newest_ms = max(self._newest_ms, stamped_ms)
        outcomes = self._by_control_id.setdefault(control_id, _ControlOutcomes(stamped_ms))
        before = outcomes.by_partition.get(partition)
        if before is None or input_offset < before[0]:
            outcomes.by_partition[partition] = (input_offset, record)
        while self._by_control_id:
            oldest, outcomes = next(iter(self._by_control_id.items()))
            if len(self._by_control_id) <= OUTCOMES_MAX and outcomes.stamped_ms > self._newest_ms - OUTCOME_AGE_MAX_MS:
                break
            del self._by_control_id[oldest]

    def of(self, control_id: str) -> dict[int, OutcomeRecord]:
        """Return the outcomes of one control id by input partition; empty while there is none."""
        outcomes = self._by_control_id.get(control_id)
        return {} if outcomes is None else {number: found for number, (_, found) in dict(outcomes.by_partition).items()}
