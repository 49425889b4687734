"""The sidecar, run as the command runs it, but it kills, freezes or hangs at a named point, or is wrong on purpose.

    python -m tests.integration.killable --kill-at offsets-sent --nth 2

Beside the steps of the commit order there are three points of a restore: `restoring` (a slice of the changelog is about
to be taken in), `settling` (the changelog is read, rows up to the watermark are about to be counted off) and
`restored` (all is read, the last batch of the restore is about to be written).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

from sidecar import cli
from sidecar.clock import SystemClock
from sidecar.engine.ports import Prepared
from sidecar.engine.restore import Restore
from sidecar.runtime import main as runtime
from sidecar.runtime.transaction.commit import Step
from sidecar.store.rocks import RocksStore
from tests.integration.sidecars import Command
from tests.simulation.mutations import MUTATIONS, Mutation

POINTS_OF_A_RESTORE: Final = {"restoring": "apply", "settling": "settle", "restored": "finish"}
"""Point -> the method of Restore before which it lies."""

EMPTY_OFFSETS: Final = "the offsets are an empty list"
APPLIED_EARLY: Final = "applied before the commit"
BELIEVED: Final = "a rolled back commit is believed"
TARGET_EARLY: Final = "the target is taken before the committed offsets"
OFF_BY_ONE: Final = "watermark off by one"
PATIENT: Final = "records have nearly the whole transaction timeout, and offsets go first"
"""No mistake: a process that is frozen while its records wait, as those of a large transaction do, sends them when it
is thawed."""

BLIND: Final = Mutation("blind to its invariants", "errors:invariant", "if not condition", "if False")
"""Goes with every mistake: else the process would stop before the mistake can do harm."""

HANGS: Final = "hangs here for ever"
"""What stands in the log once a thread does."""

OF_THE_RUNTIME: Final = (
    Mutation(
        EMPTY_OFFSETS,
        "kafka.producer:TransactionalProducer.send_offsets",
        "for each, offset in offsets.items()",
        "for each, offset in ()",
    ),
    Mutation(
        APPLIED_EARLY,
        "runtime.transaction.commit:commit",
        "producer.send_offsets(",
        "producer._producer.flush(5); _apply(writing, producer.next_changelog_offsets);"
        " writing.prepared = {each.number: prepare_committed("
        "writing.store, work.partitions[each.number], each, work.identity)"
        " for each in work.plan.partition_plans};"
        " producer.send_offsets(",
    ),
    Mutation(
        TARGET_EARLY,
        "runtime.partitions.start_offsets:StartOffsets._ask",
        "committed = self._brokers.committed(",
        "self._early = getattr(self, '_early', None) or self._brokers.bounds("
        "dict.fromkeys((self._topics.changelog_topic, self._topics.input_topic), sorted(partitions)))\n"
        "            while not self._early.done(): pass\n"
        "            committed = self._brokers.committed(",
    ),
    Mutation(
        TARGET_EARLY,
        "runtime.partitions.start_offsets:StartOffsets._is_answered",
        "self._brokers.bounds(dict.fromkeys(topics, sorted(query.partitions)))",
        "self._early",
    ),
    Mutation(
        PATIENT,
        "kafka.config:transactional_producer",
        '"message.timeout.ms": message_timeout_ms',
        '"message.timeout.ms": MESSAGE_TIMEOUT_MAX_MS',
    ),
    Mutation(PATIENT, "kafka.producer:TransactionalProducer.send_offsets", "len(self._producer) <= FEW", "False"),
)


def command(
    *,
    kill_at: str = "",
    freeze_at: str = "",
    hang_at: str = "",
    nth: int = 1,
    armed_by: Path | None = None,
    flush: bool = False,
    mutation: str = "",
    sees: bool = False,
    clock_offset: Path | None = None,
) -> Command:
    """Return the command of such a sidecar.

    Args:
        kill_at: Where it ends with SIGKILL; with `freeze_at`, once it has been frozen.
        freeze_at: Where the whole process stops with SIGSTOP.
        hang_at: Where the thread that gets there never goes on.
        nth: The how manyth time that it gets there.
        armed_by: Counting begins once this file exists; at once without one.
        flush: RocksDB writes everything to disk at once, so that a kill loses nothing that the store was given.
        mutation: Which mistake it makes.
        sees: Its invariants are on all the same.
        clock_offset: A file with the milliseconds by which its wall clock is wrong, read again at each look.
    """
    options = {
        "--kill-at": kill_at,
        "--freeze-at": freeze_at,
        "--hang-at": hang_at,
        "--nth": str(nth),
        "--armed-by": str(armed_by or ""),
        "--mutation": mutation,
        "--clock-offset": str(clock_offset or ""),
    }
    given = [text for name, value in options.items() if value for text in (name, value)]
    flags = [*(["--flush"] if flush else []), *(["--sees"] if sees else [])]
    return ["-m", "tests.integration.killable", *given, *flags]


class WrongClock(SystemClock):
    """A wall clock that is off by what stands in a file; no file, no error."""

    def __init__(self, offset: Path) -> None:
        self._offset = offset

    def wall_ms(self) -> int:
        try:
            text = self._offset.read_text(encoding="ascii")
        except FileNotFoundError:
            text = ""
        return super().wall_ms() + int(text or 0)


def set_clock(offset: Path, off_ms: int) -> None:
    """Step the sidecar's wall clock, in one go."""
    beside = offset.with_suffix(".new")
    beside.write_text(str(off_ms), encoding="ascii")
    beside.replace(offset)


class _Trap:
    """Springs when the process gets to a point often enough, and then when it gets to the next one."""

    def __init__(self, springs: Mapping[str, Callable[[], object]], nth: int, armed_by: Path | None) -> None:
        self._springs = list(springs.items())
        self._left = nth
        self._armed_by = armed_by

    def reached(self, point: str) -> None:
        awaited = bool(self._springs) and point == self._springs[0][0]
        if not awaited or (self._armed_by is not None and not self._armed_by.exists()):
            return
        self._left -= 1
        if self._left <= 0:
            _, spring = self._springs.pop(0)
            spring()

    def observe(self, step: Step) -> None:
        self.reached(step.value)

    def watch_restores(self) -> None:
        for point, method in POINTS_OF_A_RESTORE.items():
            setattr(Restore, method, self._watched(point, getattr(Restore, method)))

    def _watched(self, point: str, method: Any) -> Any:
        @wraps(method)
        def watched(*args: Any) -> Any:
            self.reached(point)
            return method(*args)

        return watched


def _signal_self(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    # The signal may reach another thread first: this one must not go a step further meanwhile.
    threading.Event().wait(0.5)


def _hang() -> None:
    print(HANGS, flush=True)
    threading.Event().wait()


def _flush_always() -> None:
    write = RocksStore.write

    def written(self: RocksStore, prepared: Prepared) -> None:
        write(self, prepared)
        self.flush()

    RocksStore.write = written  # type: ignore[method-assign]


@click.command()
@click.option("--kill-at", default="")
@click.option("--freeze-at", default="")
@click.option("--hang-at", default="")
@click.option("--nth", default=1)
@click.option("--armed-by", type=Path)
@click.option("--flush", is_flag=True)
@click.option("--mutation", default="")
@click.option("--sees", is_flag=True)
@click.option("--clock-offset", type=Path)
def main(
    *,
    kill_at: str,
    freeze_at: str,
    hang_at: str,
    nth: int,
    armed_by: Path | None,
    flush: bool,
    mutation: str,
    sees: bool,
    clock_offset: Path | None,
) -> None:
    """Run the sidecar, with a trap."""
    springs: dict[str, Callable[[], object]] = {
        freeze_at: partial(_signal_self, signal.SIGSTOP),
        hang_at: _hang,
        kill_at: partial(_signal_self, signal.SIGKILL),
    }
    springs.pop("", None)
    if unknown := springs.keys() - {*POINTS_OF_A_RESTORE, *(step.value for step in Step)}:
        raise click.UsageError(f"there is no point {unknown}")
    trap = _Trap(springs, nth, armed_by)
    trap.watch_restores()
    if flush:
        _flush_always()
    clock = WrongClock(clock_offset) if clock_offset else None
    runtime.run = partial(runtime.run, clock=clock, observe=trap.observe)
    wrong = [each for each in (*MUTATIONS, *OF_THE_RUNTIME) if mutation and each.name == mutation]
    if mutation and not wrong:
        raise click.UsageError(f"there is no mutation {mutation!r}")
    with ExitStack() as mistakes:
        for each in wrong if sees else [BLIND, *wrong]:
            mistakes.enter_context(each.applied())
        cli.main(["run"])


if __name__ == "__main__":
    main()
