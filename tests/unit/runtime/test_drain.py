"""When a drain is over: all is fired, only what is paused is left, or it takes too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sidecar.api.source import Health
from sidecar.engine.group.view import PartitionView
from sidecar.runtime.drain import NOTHING_S, OTHERS_S, Drain
from tests.clocks import HandClock
from tests.unit.engine.test_view import view_of

ME = "me"


class Group:
    """A fake of this process's knowledge about the group."""

    def __init__(self, *views: PartitionView) -> None:
        self.shown = views
        self.why_unread: str | None = None

    def views(self) -> Sequence[PartitionView]:
        return self.shown

    def partitions_total(self) -> int | None:
        return len(self.shown)

    def unread(self) -> str | None:
        return self.why_unread

    def health(self) -> Health:
        return Health(live=True, ready=True, reasons=("a reason",), details={}, starting=False)

    def now_ms(self) -> int:
        return 0

    def cluster_id(self) -> str | None:
        return None


def at(
    number: int,
    owner: str = ME,
    state: str = "running",
    *,
    by_origin: Mapping[str, int] | None = None,
    paused: Sequence[str] = (),
) -> PartitionView:
    counts = dict(by_origin or {})
    return replace(
        view_of([]),
        partition=number,
        owner=owner,
        state=state,
        pending=sum(counts.values()),
        by_origin=counts,
        closed_origins=dict.fromkeys(paused, ("paused", 1)),
    )


class Watch:
    """A drain, the group that it looks at, and a clock that is moved by hand."""

    def __init__(self, *views: PartitionView, timeout_ms: int | None = None) -> None:
        self.clock = HandClock()
        self.group = Group(*views)
        self.drain = Drain(self.group, ME, self.clock, timeout_ms)

    def look(self, after_s: float = 1.0, *views: PartitionView) -> tuple[int | None, str]:
        """Return the status, and why it failed, as it is logged."""
        self.clock.now_s += after_s
        self.group.shown = views or self.group.shown
        with capture_logs() as lines:
            status = self.drain.look()
        return status, next((str(line["reason"]) for line in lines if line["event"] == "drain_failed"), "")


def test_it_is_over_when_all_partitions_are_mine_and_empty() -> None:
    watch = Watch(at(0), at(1, by_origin={"orders": 1}))
    assert watch.look() == (None, "")
    assert watch.look(1, at(0), at(1)) == (0, "")


@pytest.mark.parametrize(
    "views",
    [
        [at(0), at(1, state="restoring")],
        [at(0), at(1, owner="", state="unknown")],
        [at(0, owner="other"), at(1, owner="other")],
        [],
    ],
)
def test_it_is_not_over_while_a_partition_may_still_come(views: list[PartitionView]) -> None:
    watch = Watch(*views)
    assert [watch.look()[0] for _ in range(int(NOTHING_S) - 1)] == [None] * (int(NOTHING_S) - 1)


def test_it_is_not_over_before_the_group_is_known() -> None:
    watch = Watch(at(0))
    watch.group.why_unread = "not read yet"
    assert watch.look() == (None, "")
    watch.group.why_unread = None
    assert watch.look() == (0, "")


def test_what_others_own_counts_for_empty_once_they_are_sure_to_live() -> None:
    """An instance that was killed is shown as the owner for a while, and then its partition comes here."""
    watch = Watch(at(0), at(1, owner="other", by_origin={"orders": 5}))
    assert watch.look() == (None, "")
    assert watch.look(OTHERS_S - 2) == (None, "")
    assert watch.look(1, at(0), at(1, by_origin={"orders": 5})) == (None, "")
    assert watch.look(1, at(0), at(1, owner="other")) == (None, "")
    assert watch.look(OTHERS_S) == (0, "")


def test_messages_of_paused_origins_alone_end_it_with_status_1() -> None:
    paused = at(0, by_origin={"orders": 2}, paused=["orders"])
    watch = Watch(paused, at(1, by_origin={"orders": 1}))
    assert watch.look() == (None, ""), "it is not paused in the other partition"
    status, why = watch.look(1, paused, at(1))
    assert status == 1
    assert "control records are not read while draining" in why


def test_a_stopped_partition_is_named_once_the_others_are_empty() -> None:
    watch = Watch(at(0, by_origin={"orders": 1}), at(1, state="stopped", by_origin={"orders": 9}))
    assert watch.look() == (None, "")
    assert watch.look(1, at(0), at(1, state="stopped")) == (1, "partitions are stopped; the log says why")


def test_after_the_timeout_it_gives_up() -> None:
    watch = Watch(at(0, by_origin={"orders": 1}), timeout_ms=5_000)
    assert watch.look(4.9) == (None, "")
    assert watch.look(0.3) == (1, "--drain-timeout is over")


def test_without_any_partition_it_gives_up() -> None:
    watch = Watch(at(0, owner="other"))
    assert watch.look(NOTHING_S - 1) == (None, "")
    status, why = watch.look(1)
    assert status == 1
    assert "other instances own them all" in why
