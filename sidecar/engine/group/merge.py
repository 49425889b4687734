"""What is known of the whole group: how the views that instances publish are put together, one view per partition.

The status records of a partition come from its owner, and around a hand-over from a former owner too, who may not know
yet. Two questions are asked of them:

* **How many wait?** The *figure*: of the complete ones that were stamped within FIGURE_AGE_MAX_MS before the youngest,
  that with the highest sequence, then the latest. A former owner that wakes up shows a sequence that was passed long
  ago. A changelog that was made anew begins at sequence 0: it would stay behind the old high one for ever, were it not
  for the age: nobody has shown the old one for as long as a figure counts as known, so it goes.
* **Who has it, and how is it?** The *holder*: the figure itself, or a later record without one. While a partition is
  handed over or restored its counters are partial, so it keeps the last figure, with its true age.

Both depend on the set of records alone, not on the order in which they are read. Ages are measured by the broker's
clock, which stamps every status record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sidecar.contract.status import OutcomeRecord
from sidecar.engine.group.activity import Activity
from sidecar.engine.group.view import FIGURE_AGE_MAX_MS, PartitionView

UNKNOWN: Final = "unknown"
"""State of a partition of which nothing is known, or nothing young enough."""
WHOLE_STATES: Final = frozenset({"running", "closed"})
"""States in which a partition's counters can be complete; `closed` is the last word of an owner who lets go."""
FIGURES_MAX: Final = 64
OUTCOMES_MAX: Final = 10_000
OUTCOME_AGE_MAX_MS: Final = 3_600_000
OWN_OFFSET: Final = 2**63 - 1

_NOTHING: Final = PartitionView(partition=0, state=UNKNOWN, owner="", url=None)


class StatusPosition(NamedTuple):
    """Where a status record stands among those of its partition; the time first, which outlives a topic made anew."""

    stamped_ms: int
    """By the broker's clock."""
    offset: int


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
    def rank(self) -> tuple[int, StatusPosition]:
        """What the best figure has most of."""
        return self.view.sequence, self.position


@dataclass(frozen=True, slots=True)
class Standing:
    """What the records of one partition say so far."""

    figures: tuple[Published, ...] = ()
    """The best one, then those that may become it when better ones grow old."""
    unfinished: Published | None = None
    """The latest record without a figure."""
    told: tuple[StatusPosition, Activity] | None = None
    """The latest last hour: a new owner is silent of it until it knows what went before."""

    @property
    def activity(self) -> Activity | None:
        """The last hour, as the best figure tells it if it does."""
        best = self.figures[0].view.activity if self.figures else None
        return best or (None if self.told is None else self.told[1])

    def joined(self, record: Published) -> Standing:
        """Return what is known with one more record; the same for any order, and for records that come twice."""
        hour, told = record.view.activity, self.told
        if hour is not None and (told is None or told[0] < record.position):
            told = (record.position, hour)
        if not record.is_figure:
            before = self.unfinished
            latest = before if before and before.position >= record.position else record
            return replace(self, unfinished=latest, told=told)
        figures = {each.position: each for each in (*self.figures, record)}
        return replace(self, told=told, figures=_contenders(figures.values()))

    def view(self, partition: int, *, broker_ms: int, now_ms: int, absent: str = "") -> PartitionView:
        """Return the partition as the group's answer shows it.

        Args:
            partition: Its number.
            broker_ms: The broker's clock now.
            now_ms: This machine's clock now; the returned `as_of_ms` is by it, and 0 when there is no figure.
            absent: An instance that is known not to have the partition, whatever its records say.
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
            reason="" if gone else shown.reason,
            as_of_ms=0 if figure is None else now_ms - max(0, broker_ms - figure.position.stamped_ms),
            activity=self.activity,
        )


def _contenders(figures: Iterable[Published]) -> tuple[Published, ...]:
    """Return the figures that are, or may yet be, the best: best first, each younger than those before it.

    A figure that ranks below another of at least its age never comes to be the best, as it goes no later.
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
        own: The views of the instance that asks, by its own clock; they count as published at their `as_of_ms`.
        instance_id: Of that instance; empty for one that never owns a partition.
        partitions_total: How many partitions the input topic has; None while that is unknown.
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
    """The broker's clock, as the stamps of records tell it to a reader that sees them as they are written.

    A record arrives after it was stamped. So at each arrival the broker's clock shows at least the stamp, and the
    greatest of these bounds is right up to the shortest delivery. Bounds of the last one to two SPAN_S count: a clock
    that was set back is followed.
    """

    SPAN_S: Final = 30.0

    def __init__(self) -> None:
        self._since_s = 0.0
        self._bound_ms: float | None = None
        self._former_ms: float | None = None

    def heard(self, stamped_ms: int, arrived_s: float) -> None:
        """Take in a record that was just written; `arrived_s` is monotonic."""
        bound_ms = stamped_ms - arrived_s * 1000
        if self._bound_ms is None or arrived_s - self._since_s >= self.SPAN_S:
            self._former_ms, self._bound_ms, self._since_s = self._bound_ms, bound_ms, arrived_s
        else:
            self._bound_ms = max(self._bound_ms, bound_ms)

    def now_ms(self, monotonic_s: float, wall_ms: int) -> int:
        """Return what the broker's clock shows; this machine's wall time until a record was heard."""
        bounds = [bound for bound in (self._bound_ms, self._former_ms) if bound is not None]
        return round(max(bounds) + monotonic_s * 1000) if bounds else wall_ms


@dataclass(slots=True)
class _ControlOutcomes:
    stamped_ms: int
    by_partition: dict[int, tuple[int, OutcomeRecord]] = field(default_factory=dict)


class Outcomes:
    """The latest outcomes of control records: at most OUTCOMES_MAX control ids, none older than OUTCOME_AGE_MAX_MS."""

    def __init__(self) -> None:
        self._by_control_id: dict[str, _ControlOutcomes] = {}
        self._newest_ms = 0

    def add(self, control_id: str, input_offset: int, record: OutcomeRecord, stamped_ms: int) -> None:
        """Take in an outcome; of several for one control id and partition that of the lowest input offset stands."""
        partition = record.partition
        self._newest_ms = max(self._newest_ms, stamped_ms)
        outcomes = self._by_control_id.setdefault(control_id, _ControlOutcomes(stamped_ms))
        before = outcomes.by_partition.get(partition)
        if before is None or input_offset < before[0]:
            outcomes.by_partition[partition] = (input_offset, record)
        while self._by_control_id:
            oldest, told = next(iter(self._by_control_id.items()))
            if len(self._by_control_id) <= OUTCOMES_MAX and told.stamped_ms > self._newest_ms - OUTCOME_AGE_MAX_MS:
                break
            del self._by_control_id[oldest]

    def of(self, control_id: str) -> dict[int, OutcomeRecord]:
        """Return the outcomes of one control id by input partition; empty while there is none."""
        outcomes = self._by_control_id.get(control_id)
        return {} if outcomes is None else {number: found for number, (_, found) in dict(outcomes.by_partition).items()}
