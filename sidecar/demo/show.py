"""The demo from start to end: broker, topics, sidecar, messages, ledger."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sidecar import log
from sidecar.clock import SystemClock
from sidecar.demo.application import CardRejected, OrderWithdrawn, Shop
from sidecar.demo.ledger import Ledger, draw_up
from sidecar.demo.plan import (
    DELAY_MAX_MS,
    DLQ_TOPIC,
    INPUT_TOPIC,
    MISSING_ORIGIN,
    ORIGINS,
    POLICY_DELAYS_MS,
    DemoMessage,
    Totals,
    make_messages,
    totals,
    warm_up_messages,
)
from sidecar.demo.process import Figures, SidecarProcess
from sidecar.demo.reading import read_all
from sidecar.demo.screen import Moment, Screen
from sidecar.demo.sender import Sender
from sidecar.devbroker.jars import DownloadProgress
from sidecar.devbroker.local_broker import LocalBroker
from sidecar.errors import CommandFailed, KafkaFailed
from sidecar.kafka.admin.cluster import Admin, Deadline, NewTopic, create_topic
from sidecar.kafka.writer import Writer
from sidecar.settings import Settings

_SEED = 20
_INPUT_PARTITIONS = 4
_ORIGIN_PARTITIONS = 2
_RPC_S = 30.0
_STEP_S = 0.25
_STALL_S = DELAY_MAX_MS / 1000 + 40.0
"""The time without progress after which the ledger is drawn up anyway: it says what is missing."""
_READ_S = 60.0
_SPARK_READY_S = 240.0
_WARM_MESSAGES = 500
_WARM_ROUNDS_MIN = 3
_WARM_ROUNDS_MAX = 6
_WARM_SEND_S = 1.0
_WARM_S = 5.0
"""The most that a round of a warm query takes: it sends for a second, and each message has a delay of a second."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the demo."""

    messages: int
    seconds: float
    """The time over which the messages are sent evenly."""
    port: int
    """The port of the broker; 0: any free one."""
    http_port: int
    """The port of the sidecar; 0: any free one."""
    keep: bool
    """Whether broker and sidecar keep running after the ledger, until interrupted."""
    spark: bool = False
    """Whether to run the engine on Apache Spark."""


def run_demo(options: Options, screen: Screen, progress: DownloadProgress) -> Ledger:
    """Run the demo and return its ledger; with `keep` only when interrupted.

    Raises:
        CommandFailed: Broker, sidecar or application failed.
    """
    messages = make_messages(options.messages, _SEED)
    screen.say("starting Apache Kafka on this machine")
    with LocalBroker(options.port, progress=progress) as broker, _folder(screen) as folder:
        screen.say(f"Kafka answers on {broker.bootstrap_servers}; creating topics, starting the sidecar")
        _create_topics(broker.bootstrap_servers)
        sidecar = _sidecar(options, _settings(broker.bootstrap_servers, options.http_port, folder), folder)
        try:
            sidecar.start()
            screen.say(f"the sidecar is ready at {sidecar.url}")
            before = _warm_up(broker, sidecar, len(messages), screen) if options.spark else []
            warm_ms = SystemClock().wall_ms()
            screen.say(f"sending {len(messages):,} messages")
            reported = _run_traffic(broker, sidecar, messages, options.seconds, screen, before)
            if not options.keep and (status := sidecar.stop()):
                raise CommandFailed(f"the sidecar ended with status {status}")
            ledger = _audit(broker.bootstrap_servers, [*before, *messages], reported, warm_ms)
            screen.report(ledger)
            if options.keep:
                _keep(broker, sidecar, screen)
        finally:
            sidecar.stop()
        if not ledger.holds:
            raise LedgerBroken(ledger)
    return ledger


class LedgerBroken(CommandFailed):
    """The ledger does not hold."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("the ledger does not hold:\n" + "\n".join(ledger.problems))
        self.ledger = ledger


@contextmanager
def _folder(screen: Screen) -> Iterator[Path]:
    """Yield a folder for state and log; after a failure it stays and is named."""
    folder = Path(tempfile.mkdtemp(prefix="retry-sidecar-demo-"))
    try:
        yield folder
    except CommandFailed:
        screen.freeze()
        screen.say(f"state and log of the sidecar are kept in {folder}")
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _sidecar(options: Options, settings: Mapping[str, str], folder: Path) -> SidecarProcess:
    if not options.spark:
        return SidecarProcess(settings, folder)
    command = ("spark", "run", "--checkpoint", f"file://{folder}/spark", "--master", "local[2]")
    return SidecarProcess(settings, folder, (*command, "--conf", "spark.driver.memory=1g"), _SPARK_READY_S)


def _settings(bootstrap_servers: str, http_port: int, folder: Path) -> Mapping[str, str]:
    return {
        "BOOTSTRAP_SERVERS": bootstrap_servers,
        "INPUT_TOPIC": INPUT_TOPIC,
        "DLQ_TOPIC": DLQ_TOPIC,
        "STATE_DIR": str(folder / "state"),
        "HTTP_PORT": str(http_port),
        "ORIGIN_TOPICS": ",".join((*ORIGINS, MISSING_ORIGIN)),
        "DELAYS": ",".join(f"{delay_ms}ms" for delay_ms in POLICY_DELAYS_MS),
        "FATAL_EXCEPTION": CardRejected.__name__,
        "DROPPABLE_EXCEPTION": OrderWithdrawn.__name__,
    }


def _create_topics(bootstrap_servers: str) -> None:
    # Lateness is measured with the broker's clock on the origins.
    stamped = {"message.timestamp.type": "LogAppendTime"}
    topics = [
        NewTopic(INPUT_TOPIC, _INPUT_PARTITIONS, 1),
        NewTopic(DLQ_TOPIC, 1, 1),
        *(NewTopic(origin, _ORIGIN_PARTITIONS, 1, stamped) for origin in ORIGINS),
    ]
    admin = Admin(Settings(bootstrap_servers=bootstrap_servers), log.librdkafka_logger())
    for topic in topics:
        create_topic(admin, topic, Deadline(_RPC_S))


def _warm_up(broker: LocalBroker, sidecar: SidecarProcess, sent: int, screen: Screen) -> list[DemoMessage]:
    """Send messages in rounds until one comes back quickly, and return them: a JVM is slow for some seconds."""
    screen.say("warming the query up")
    clock, messages = SystemClock(), list[DemoMessage]()
    for at in range(_WARM_ROUNDS_MAX):
        began_s = clock.monotonic_s()
        more = warm_up_messages(_WARM_MESSAGES, sent + 1 + at * _WARM_MESSAGES)
        _run_traffic(broker, sidecar, more, _WARM_SEND_S, screen, messages)
        messages += more
        if at + 1 >= _WARM_ROUNDS_MIN and clock.monotonic_s() - began_s < _WARM_S:
            break
    return messages


def _run_traffic(
    broker: LocalBroker,
    sidecar: SidecarProcess,
    messages: list[DemoMessage],
    seconds: float,
    screen: Screen,
    before: list[DemoMessage],
) -> int:
    """Run sender and application until all messages have come back. Returns the answer of GET /pending at the end.

    Args:
        broker: The broker.
        sidecar: The sidecar.
        messages: The messages.
        seconds: The time over which they are sent.
        screen: Shows them.
        before: The messages that have come back already: the sidecar's figures count them too.
    """
    writer = Writer({"bootstrap.servers": broker.bootstrap_servers, "logger": log.librdkafka_logger()})
    sender = Sender(writer, messages, seconds)
    shop = Shop(broker.bootstrap_servers)
    stop = threading.Event()
    goal = totals([*before, *messages])
    clock = SystemClock()
    seen, seen_s = (-1, -1, -1), clock.monotonic_s()
    with ThreadPoolExecutor(2, "demo") as threads:
        try:
            working = [threads.submit(shop.run, stop), threads.submit(sender.run, stop)]
            while True:
                figures = sidecar.look()
                screen.show(_moment(screen.elapsed_s, sender, shop, figures, goal, len(messages)))
                _raise_failure(working)
                _check(broker)
                if (now := (sender.sent, figures.received, figures.fired)) != seen:
                    seen, seen_s = now, clock.monotonic_s()
                if _is_done(figures, goal) or clock.monotonic_s() - seen_s >= _STALL_S:
                    break
                stop.wait(_STEP_S)
        finally:
            stop.set()
    _raise_failure(working)
    screen.freeze()
    return figures.pending


def _check(broker: LocalBroker) -> None:
    if not broker.running:
        raise CommandFailed(f"the broker ended; its log says:\n{broker.last_log_lines()}")


def _moment(elapsed_s: float, sender: Sender, shop: Shop, figures: Figures, goal: Totals, to_send: int) -> Moment:
    return Moment(
        elapsed_s=elapsed_s,
        sent=sender.sent,
        to_send=to_send,
        handled=shop.handled,
        failed=shop.failed,
        figures=figures,
        trips=goal.trips,
        to_fire=goal.deliveries,
    )


def _raise_failure(working: list[Future[None]]) -> None:
    """Raise what ended the sender or the application, if anything did."""
    for work in working:
        if work.done():
            try:
                work.result()
            except KafkaFailed as error:
                raise CommandFailed(f"the broker failed the sender: {error}") from error


def _is_done(figures: Figures, goal: Totals) -> bool:
    """Return whether to stop waiting; the ledger says whether all is right."""
    return figures.received >= goal.trips and figures.fired >= goal.deliveries and figures.pending <= goal.pending


def _audit(bootstrap_servers: str, messages: list[DemoMessage], reported_pending: int, warm_ms: int) -> Ledger:
    read_at_ms = SystemClock().wall_ms()
    entered, outputs = read_all(bootstrap_servers, _READ_S)
    return draw_up(
        entered,
        outputs,
        planned=totals(messages).trips,
        read_at_ms=read_at_ms,
        reported_pending=reported_pending,
        warm_ms=warm_ms,
    )


def _keep(broker: LocalBroker, sidecar: SidecarProcess, screen: Screen) -> None:
    """Print all addresses, and wait until interrupted."""
    screen.say("broker and sidecar keep running until Ctrl-C")
    screen.say(f"Kafka broker       {broker.bootstrap_servers}")
    for name, path in (("page", "/ui/"), ("pending", "/pending"), ("metrics", "/metrics"), ("HTTP API", "/docs")):
        screen.say(f"{name:<18} {sidecar.url}{path}")
    screen.say(f"sidecar's log      {sidecar.log_path}")
    screen.say(f"try: retry-sidecar send --bootstrap-servers {broker.bootstrap_servers} --origin orders --delay 5s")
    pause = threading.Event()
    try:
        while not pause.wait(1.0):
            sidecar.check()
            _check(broker)
    except KeyboardInterrupt:
        screen.say("stopping")
