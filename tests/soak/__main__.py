"""`make soak-spark MINUTES=60`: runs the Spark engine under a steady load, and fails when what it holds grows.

One line of JSON at the end has the medians of the second and of the last third of all figures.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import Producer

from sidecar.clock import SystemClock
from tests.broker import local_broker, read_committed
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
from tests.soak.figures import Sample, grown, growth, sample
from tests.spark.queries import WAIT_S, command
from tests.waiting import eventually

PARTITIONS: Final = 4
STATE_PARTITIONS: Final = 2
EVERY_S: Final = 5.0
"""The time between two looks at the figures."""
DELAY_MS: Final = 10_000
"""The delays are spread up to here, so what is pending is steady after the first third."""
SETTLE_S: Final = 600.0


@click.command()
@click.option("--minutes", default=60.0, show_default=True, type=click.FloatRange(1, 7 * 24 * 60))
@click.option("--per-second", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Messages sent.")
def main(minutes: float, per_second: int) -> None:
    """Run the Spark engine for so long, and print one line of JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, local_broker() as broker:
        stage = set_stage(broker.bootstrap_servers, PARTITIONS)
        sidecars = Sidecars(Path(folder))
        one = sidecars.make("soak", stage)
        try:
            report = run(one, stage, Path(folder), minutes, per_second)
        except BaseException:
            print(one.last_lines(), file=sys.stderr)
            raise
        finally:
            sidecars.end()
    click.echo(json.dumps({"minutes": minutes, "per_second": per_second, **report}))
    raise SystemExit(0 if report["right"] else 1)


def run(one: Sidecar, stage: Stage, folder: Path, minutes: float, per_second: int) -> dict[str, Any]:
    """Run the query under the load for so long, and return what came of it."""
    one.start(command("run", folder, "--state-partitions", str(STATE_PARTITIONS)))
    one.await_ready(WAIT_S)
    began_batch, stopped, load = micro_batch(one), threading.Event(), Load(stage, per_second)
    sending = threading.Thread(target=load.send, args=(stopped.is_set,), name="load")
    sending.start()
    try:
        samples = watch(one, folder / "checkpoint", minutes)
    finally:
        stopped.set()
        sending.join()
    batches = micro_batch(one) - began_batch
    came = Counter(
        record.value
        for record in read_committed(
            stage.bootstrap, [stage.origin], SETTLE_S, until=lambda seen: len(seen) >= load.sent
        )
    )
    ended = one.stop(WAIT_S)
    medians = growth(samples)
    faults = {
        "grown": grown(medians),
        "lost": load.sent - len(came),
        "twice": sum(count - 1 for count in came.values()),
        "status": ended,
    }
    return {
        "right": not any(faults.values()),
        **faults,
        # A machine that stands still for long makes a query fail, which restarts: that may lose nothing, and no more.
        "failures": one.log.count("query_failed"),
        "micro_batches": batches,
        "messages": load.sent,
        "medians": medians,
    }


class Load:
    """Sends at a steady rate, with delays that are spread evenly.

    Args:
        stage: The topics.
        per_second: The messages in a second.
    """

    def __init__(self, stage: Stage, per_second: int) -> None:
        self.sent = 0
        self._stage = stage
        self._per_second = per_second

    def send(self, stopped: Callable[[], bool]) -> None:
        """Send until told to stop; all has arrived when it returns."""
        producer = Producer({"bootstrap.servers": self._stage.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        clock, pause = SystemClock(), threading.Event()
        began_s = clock.monotonic_s()
        while not stopped():
            due = int((clock.monotonic_s() - began_s) * self._per_second)
            for number in range(self.sent, due):
                delay = b"%d" % (number * 7_919 % DELAY_MS)
                headers: Any = [("retry-origin-topic", self._stage.origin), ("retry-delay-ms", delay)]
                place = number % PARTITIONS
                producer.produce(self._stage.input_topic, b"%d" % number, b"%d" % number, place, headers=headers)
                self.sent += 1
            producer.poll(0)
            pause.wait(0.05)
        assert producer.flush(SETTLE_S) == 0


def watch(one: Sidecar, checkpoint: Path, minutes: float) -> list[Sample]:
    """Return the figures of so many minutes."""
    clock, pause, samples = SystemClock(), threading.Event(), list[Sample]()
    until_s = clock.monotonic_s() + minutes * 60
    while clock.monotonic_s() < until_s:
        assert one.running, "the driver has ended"
        samples.append(sample(one.pid, checkpoint))
        if len(samples) % 12 == 0:
            print(json.dumps({"micro_batch": micro_batch(one), **samples[-1]}), file=sys.stderr, flush=True)
        pause.wait(EVERY_S)
    return samples


def micro_batch(one: Sidecar) -> int:
    """Return the number of the last micro-batch."""

    def told() -> int | None:
        _, health = one.get("/health")
        return None if health is None else health["details"].get("micro_batch")

    return int(eventually(lambda: told() or 0, WAIT_S, "the driver names its micro-batch"))


if __name__ == "__main__":
    main()
