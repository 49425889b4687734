"""Gives what a micro-batch sends to the sender of its state partition, in transactions of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sidecar.errors import invariant
from sidecar.interpreter import collect_rarely
from sidecar.settings import Settings
from sidecar.spark.marks import Digest
from sidecar.spark.stream.ahead import Ahead, ReleaseClock
from sidecar.spark.stream.outputs import PlanOutput
from sidecar.spark.stream.sender import Sender
from sidecar.spark.stream.wire import OutputPart, Packed, read_row

if TYPE_CHECKING:
    from pyspark.sql import Row

TRANSACTION_RECORDS_MAX: Final = 50_000
TRANSACTION_BYTES_MAX: Final = 32 * 1024 * 1024
"""The size at which a transaction is committed; the output of one plan is never divided."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker process keeps for one state partition."""

    sender: Sender
    ahead: Ahead


_workers: dict[tuple[str, str, str, int], Worker] = {}
_clocks: dict[tuple[str, str], ReleaseClock] = {}


@dataclass(slots=True)
class _Track:
    """How far the parts of a micro-batch have come, by partition."""

    digests: dict[int, Digest] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)

    def forget(self, partition: int) -> None:
        for each in (self.digests, self.began, self.reached):
            each.pop(partition, None)


class TransactionalSink:
    """The writer that Spark calls for each state partition of a micro-batch: it commits rows as whole plans.

    Args:
        settings: The settings of the clients.
        checkpoint: The id of the Spark checkpoint.
        partitions: The number of input partitions, and of state partitions.
        former: The version that began the first micro-batch, if it was another one.
    """

    def __init__(self, settings: Settings, checkpoint: str, partitions: tuple[int, int], former: str = "") -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._partitions = partitions
        self._former = former

    def open(self, partition_id: int, epoch_id: int) -> bool:
        collect_rarely()
        self._state_partition = partition_id
        self._batch = epoch_id
        self._outputs: list[PlanOutput] = []
        self._open: dict[int, PlanOutput] = {}
        self._step, self._next = _Track(), _Track()
        self._last: dict[int, PlanOutput] = {}
        self._ahead: dict[int, list[PlanOutput]] = {}
        self._records = self._bytes = 0
        return True

    def process(self, row: Row) -> None:
        part, packed = read_row(row["payload"])
        number = part.partition
        if not part.ahead and self._ahead.pop(number, None) is not None:
            self._next.forget(number)  # another step of this instant begins with it
        track = self._next if part.ahead else self._step
        output = self._open.pop(number, None)
        self._check(part, output, track)
        if output is None:
            output = self._begun(part, track)
        output.packed.append(packed)
        output.status_records += part.status_records
        output.closings += part.closings
        output.last = part.last
        digest = track.digests.setdefault(number, Digest())
        digest.add(packed, part.status_records)
        if not part.ends:
            self._open[number] = output
        else:
            track.reached[number] = part.after
            output.digest = str(digest)
            if part.ahead:
                self._ahead.setdefault(number, []).append(output)
                return
            self._outputs.append(output)
            self._last[number] = output
        if not part.ahead:
            self._measure(packed, ends=part.ends)

    def _measure(self, packed: Packed, *, ends: bool) -> None:
        self._records += packed.total
        self._bytes += len(packed.content)
        if ends and (self._records >= TRANSACTION_RECORDS_MAX or self._bytes >= TRANSACTION_BYTES_MAX):
            self._deliver()

    def _begun(self, part: OutputPart, track: _Track) -> PlanOutput:
        number, before = part.partition, self._last.get(part.partition)
        began = track.began.setdefault(number, part.before)
        return PlanOutput(
            number,
            part.before,
            part.after,
            began,
            part.next_input_offset,
            offset_base=part.offset_base,
            release_ms=part.release_ms,
            ahead=part.ahead,
            step_digest=before.digest if part.ahead and before is not None else "",
        )

    def _check(self, part: OutputPart, output: PlanOutput | None, track: _Track) -> None:
        """Raise InvariantViolated if a part is out of order, or belongs to another state partition."""
        number, states = part.partition, self._partitions[1]
        invariant(
            number % states == self._state_partition,
            "the output of a partition came to a state partition that is not its own",
            partition=number,
            state_partition=self._state_partition,
        )
        came = part.before, part.after
        begun = came if output is None else (output.before, output.after)
        invariant(came == begun, "parts of two plans are mixed", partition=number, begun=begun, came=came)
        reached = track.reached.get(number, self._step.reached.get(number, part.before))
        invariant(
            part.before == reached,
            "the output of a plan does not continue the one before",
            partition=number,
            reached=reached,
            came=came,
        )

    def close(self, error: BaseException | None) -> None:
        """Commit the rest, and begin to send ahead. Spark also ends the rows so when the operator before has failed."""
        if error is not None:
            return
        invariant(
            not self._open,
            "the micro-batch was cut off, so its incomplete plans are not committed",
            state_partition=self._state_partition,
        )
        self._deliver()
        if self._ahead or self._last:
            outputs = [output for each in self._ahead.values() for output in each]
            self._worker().ahead.begin(self._batch, outputs, self._last.keys() | self._ahead.keys())

    def _deliver(self) -> None:
        """Commit what there is, each output when it is due."""
        outputs, self._outputs = self._outputs, []
        self._records = self._bytes = 0
        if not outputs:
            return
        worker = self._worker()
        worker.ahead.pause()
        while outputs:
            ready, outputs = worker.ahead.clock.released(outputs)
            if ready:
                worker.sender.deliver(self._batch, ready, self._former)
            if outputs:
                worker.ahead.clock.wait(outputs)

    def _worker(self) -> Worker:
        settings = self._settings
        key = (settings.bootstrap_servers, settings.streams_app_id, self._checkpoint, self._state_partition)
        if key not in _workers:
            inputs, states = self._partitions
            siblings = [each for each in range(inputs) if each % states == self._state_partition]
            sender = Sender(settings, self._checkpoint, self._state_partition, siblings)
            clock = _clocks.setdefault(key[:2], ReleaseClock(settings))
            _workers[key] = Worker(sender, Ahead(sender, clock))
        return _workers[key]
