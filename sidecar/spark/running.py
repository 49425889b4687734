"""Runs the query: starts it as its checkpoint requires, watches it, and restarts it when it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from msgspec import structs

from sidecar import __version__
from sidecar.clock import SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.kafka.admin.offsets import Committed
from sidecar.settings import Settings
from sidecar.spark import group
from sidecar.spark.manifest import CheckpointFolder, Kept, Manifest, Unfinished, require_same
from sidecar.spark.marks import Mark, TopicsRefuse, replay_closings
from sidecar.spark.stream.batches import Batches
from sidecar.spark.stream.clock_check import ClockCheck
from sidecar.spark.stream.query import Replay
from sidecar.spark.stream.step import Rules

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = structlog.get_logger(__name__)

FAILURES_MAX: Final = 5
"""The most restarts of a query without a completed micro-batch in between."""
AWAY_MAX_S: Final = 30.0
"""The longest time between two tries while no broker answers."""
WAIT_S: Final = 0.2
DRAIN_S: Final = 30.0
"""The time that a micro-batch has to complete after a stop was requested."""


class StartedQuery(NamedTuple):
    """A query that was started."""

    query: StreamingQuery
    alone: bool
    """Whether it completes one micro-batch and ends."""


class Starter:
    """Starts the query so that an interrupted micro-batch completes under the rules that it began with.

    Args:
        settings: The effective settings.
        manifest: The manifest of the checkpoint.
        folder: The folder of the checkpoint.
        rules: Makes the rules of new micro-batches from the topics as they are now.
        start: Starts the query.
    """

    def __init__(
        self,
        settings: Settings,
        manifest: Manifest,
        folder: CheckpointFolder,
        rules: Callable[[], Rules],
        start: Callable[[Rules, Replay | None], StreamingQuery],
    ) -> None:
        self._settings = settings
        self._manifest = manifest
        self._folder = folder
        self._make_rules = rules
        self._rules: Rules | None = None
        self._start = start
        self._refusing: dict[str, str] = {}
        self._refusing_batch = -1
        self._looked = False
        self._settled: dict[int, Mark] = {}
        """The marks for which a micro-batch began that takes what was sent ahead into the state."""

    def start(self) -> StartedQuery:
        """Start the query.

        Raises:
            SettingsInvalid: The input topic is not the one of the checkpoint.
            BrokerUnavailable: It is not known what was sent.
        """
        rules = self.same_topic()
        unfinished = self._folder.unfinished()
        former, version, alone = self._former(rules)
        if unfinished is None and self._looked and not alone:
            return self._go_on(rules)
        found = self._sent(rules)
        self._looked = True
        if unfinished is None:
            ahead = self._unsettled(found) if alone else {}
            return self._settle(former, version, ahead) if ahead else self._go_on(rules)
        return self._repeated(unfinished, found, former, version, alone=alone)

    def same_topic(self) -> Rules:
        """Return the rules of new micro-batches; raise SettingsInvalid if the input topic is another one by now."""
        rules, manifest = self._fresh_rules(), self._manifest
        here = structs.replace(manifest, input_topic_id=rules.input_topic_id)
        require_same(manifest, here, self._folder.location)
        return rules

    def complete(self, stopping: Callable[[float], bool], clock: ClockCheck) -> bool:
        """Run micro-batches until none is unfinished and the state has all that was sent; begin nothing else.

        Args:
            stopping: Waits at most this many seconds and returns whether to stop.
            clock: Blocks deliveries while the clock is wrong.

        Returns:
            False when a stop was requested meanwhile.

        Raises:
            SidecarError: As `start`; or the query cannot go on.
        """
        failures = 0
        while not _held(clock, stopping):
            rules = self._fresh_rules()
            unfinished = self._folder.unfinished()
            if unfinished is None:
                started = self.finish()
            else:
                found = self._sent(rules)
                former, version, _ = self._former(rules)
                started = self._repeated(unfinished, found, former, version, alone=True)
            if started is None:
                return True
            while started.query.isActive:
                if stopping(WAIT_S):
                    started.query.stop()
                    return False
            failure = started.query.exception()
            if failure is None or self.note_refusals(str(failure)):
                continue
            failures += 1
            _give_up(_reason(str(failure)), failures)
            if stopping(2.0**failures):
                break
        return False

    def _sent(self, rules: Rules) -> Mapping[int, Mark]:
        """Return the marks once no former producer can commit. Raises BrokerUnavailable."""
        manifest = self._manifest
        # Producers of a former number of state partitions end too.
        before = manifest.former.state_partitions if manifest.former is not None else 0
        group.settle(self._settings, max(before, manifest.state_partitions))
        marks = group.marks(group.last_checkpoints(self._settings, rules.input_partitions))
        _notice_others(self._settings, group.committed(self._settings, rules.input_partitions), marks)
        return marks

    def _repeated(
        self,
        unfinished: Unfinished,
        marks: Mapping[int, Mark],
        former: Rules,
        version: str,
        *,
        alone: bool,
    ) -> StartedQuery:
        """Start the query with the unfinished micro-batch, under the rules and version that it began with."""
        refusing = self._refusing if self._refusing_batch == unfinished.batch else {}
        logger.info(
            "micro_batch_repeated", batch=unfinished.batch, version=version or __version__, closed=sorted(refusing)
        )
        closings = replay_closings(unfinished.now_ms, unfinished.batch, marks, refusing)
        replay = Replay(closings, version, alone)
        return StartedQuery(self._start(former, replay), alone)

    def _go_on(self, rules: Rules) -> StartedQuery:
        """Start with a new micro-batch, under these rules."""
        self._folder.keep(rules)
        self._folder.plan_empty(SystemClock().wall_ms())
        return StartedQuery(self._start(rules, None), alone=False)

    def finish(self) -> StartedQuery | None:
        """Start a last micro-batch, after which the state has all that was sent; return None when it has it already.

        Raises:
            BrokerUnavailable: It is not known what was sent.
        """
        if self._rules is None or self._folder.unfinished() is not None:
            return None
        group.settle(self._settings, self._manifest.state_partitions)
        ahead = self._unsettled(group.marks(group.last_checkpoints(self._settings, self._rules.input_partitions)))
        if not ahead:
            return None
        former, version, _ = self._former(self._rules)
        return self._settle(former, version, ahead)

    def _former(self, rules: Rules) -> tuple[Rules, str, bool]:
        """Return the rules of the last micro-batch, its version if it was another, and whether any of it differs."""
        kept = self._folder.kept()
        former = rules if kept is None else replace(kept.rules, api_token=self._settings.api_token)
        version = "" if kept is None or kept.version == __version__ else kept.version
        return former, version, kept != Kept(__version__, replace(rules, api_token=None))

    def _unsettled(self, marks: Mapping[int, Mark]) -> dict[int, Mark]:
        """Return the marks of what is sent and only the next micro-batch takes into the state.

        A partition whose mark that micro-batch has not changed is stopped. It is left out: nothing changes its state,
        and the others would wait for it at each start.
        """
        checkpoint = self._manifest.checkpoint
        ahead = {number: mark for number, mark in marks.items() if mark.ahead and mark.checkpoint == checkpoint}
        left = sorted(number for number, mark in ahead.items() if self._settled.get(number) == mark)
        if left:
            logger.warning("stopped_partitions_left", partitions=", ".join(map(str, left)))
        return {number: mark for number, mark in ahead.items() if number not in left}

    def _settle(self, former: Rules, version: str, ahead: Mapping[int, Mark]) -> StartedQuery:
        """Start a micro-batch that begins with what was planned ahead, by its rules, and plans nothing ahead."""
        self._settled.update(ahead)
        # A partition has a step behind the due of what was sent ahead of it, by whatever clock that was sent.
        self._folder.plan_empty(max(SystemClock().wall_ms(), *(mark.ahead_ms + 1 for mark in ahead.values())))
        replay = Replay(former=version, alone=True)
        return StartedQuery(self._start(replace(former, ahead=False), replay), alone=True)

    def note_refusals(self, failure: str) -> bool:
        """Note the topics that made a query fail; return whether the next try differs."""
        unfinished, closed = self._folder.unfinished(), TopicsRefuse.read(failure)
        if unfinished is None or not closed:
            return False
        if self._refusing_batch != unfinished.batch:
            self._refusing, self._refusing_batch = {}, unfinished.batch
        news = closed.keys() - self._refusing.keys()
        self._refusing.update(closed)
        logger.warning("topics_refuse", batch=unfinished.batch, topics=closed)
        return bool(news)

    def _fresh_rules(self) -> Rules:
        try:
            self._rules = self._make_rules()
        except BrokerUnavailable:
            if self._rules is None:
                raise
        return self._rules


def _notice_others(settings: Settings, committed: Mapping[int, Committed], marks: Mapping[int, Mark]) -> None:
    """Log that another tool has set offsets of the group: the query continues where its checkpoint is."""
    others = [
        number
        for number, mark in marks.items()
        if number in committed and committed[number].offset != mark.next_input_offset
    ]
    if others:
        named = ", ".join(map(str, sorted(others)))
        logger.warning("offsets_set_by_others", group=settings.group_id, partitions=named)


def keep_running(
    starter: Starter,
    stopping: Callable[[float], bool],
    batches: Batches,
    clock: ClockCheck,
    replaced: Callable[[], str | None],
    failed: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the query, and restart it from its checkpoint when it fails.

    Args:
        starter: Starts the query, or refuses to.
        stopping: Waits at most this many seconds and returns whether to stop.
        batches: The progress of micro-batches.
        clock: Blocks deliveries while the clock is wrong.
        replaced: Returns why the query must be restarted when the input topic has become another one, else None.
        failed: Called with the reason of each failure of the query.
    """
    failures = away = 0
    while not _held(clock, stopping):
        try:
            query, alone = starter.start()
        except BrokerUnavailable as cause:
            # Nothing has begun, so it is tried until the brokers are back.
            away = min(away + 1, 30)
            logger.warning("query_failed", reason=str(cause), attempt=away)
            if stopping(min(2.0**away, AWAY_MAX_S)):
                return
            continue
        away = 0
        logger.info("query_started", query=str(query.id), run=str(query.runId))
        done, held = _watch(query, stopping, batches, lambda: clock.blocker() or replaced())
        stopped = query.isActive
        if stopped:
            _drain(query)
        done += batches.pass_on_rest(str(query.runId))
        if stopped:
            logger.info("query_stopped", reason=held or "")
            if held is not None:
                continue
            if clock.blocker() is None:
                _finish(starter, batches)
            return
        failure = query.exception()
        if failure is None and alone:
            failures = 0
            continue
        if failure is None:
            raise CommandFailed("the query was stopped from outside: start `spark run` again to continue")
        said = _reason(str(failure))
        failed(said)
        if starter.note_refusals(str(failure)):
            continue
        failures = 1 if done else failures + 1
        try:
            _give_up(said, failures)
        except CommandFailed:
            # A new topic of the name makes a query fail in several ways; this names the reason and the way out.
            starter.same_topic()
            raise
        logger.warning("query_failed", reason=said, attempt=failures)
        if stopping(2.0**failures):
            return


def _give_up(said: str, failures: int) -> None:
    """Raise CommandFailed if another try would not help, or there were enough."""
    if failures >= FAILURES_MAX or "CommandFailed" in said or "InvariantViolated" in said:
        raise CommandFailed(f"the query cannot continue: {said}")


def _held(clock: ClockCheck, stopping: Callable[[float], bool]) -> bool:
    """Wait until the clock is right; return True when a stop was requested meanwhile."""
    said = ""
    while (blocker := clock.blocker()) is not None:
        if blocker != said:
            logger.warning("firing_held", reason=blocker)
            said = blocker
        if stopping(1.0):
            return True
    return False


def _watch(
    query: StreamingQuery,
    stopping: Callable[[float], bool],
    batches: Batches,
    blocker: Callable[[], str | None],
) -> tuple[int, str | None]:
    """Pass progress on until the query ends or has to stop.

    Returns:
        The number of micro-batches passed on, and why the query has to stop, None when it ended.
    """
    done, held = 0, None
    while query.isActive and held is None and not stopping(WAIT_S):
        done += batches.pass_on()
        held = blocker()
    return done, held


def _drain(query: StreamingQuery) -> None:
    """Wait for the running micro-batch, then stop. An interrupted one would run again after the next start."""
    clock, began = SystemClock(), query.lastProgress
    until_s = clock.monotonic_s() + DRAIN_S
    before = began["batchId"] if began else -1
    while query.isActive and clock.monotonic_s() < until_s:
        if not query.status["isTriggerActive"]:
            break
        progress = query.lastProgress
        if progress and progress["batchId"] > before:
            break
        query.awaitTermination(0.02)
    query.stop()


def _finish(starter: Starter, batches: Batches) -> None:
    """Let the state take in what was sent ahead of it. If that fails, the next start does it first."""
    try:
        started = starter.finish()
    except BrokerUnavailable as cause:
        logger.warning("query_failed", reason=str(cause), attempt=1)
        return
    if started is None:
        return
    started.query.awaitTermination(DRAIN_S)
    started.query.stop()
    batches.pass_on_rest(str(started.query.runId))


def _reason(text: str) -> str:
    """Return the most useful line of a failure: the last one that names an error of Python, else the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("sidecar.", "cimpl.", "pyspark.errors")) and ":" in line]
    return named[-1] if named else lines[0] if lines else "no reason given"
