"""python -m tests.chaos --minutes 60: random faults, then what the topics say, as one line of JSON. Exit status 1 when
anything was lost, twice, early or wrongly answered, or a fault had another consequence than it must have.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click

from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind
from sidecar.control.client import ControlClient
from sidecar.devbroker.local_cluster import LocalCluster
from tests.broker import create_topic
from tests.chaos.disturber import Disturber
from tests.integration.cluster.faults import LONG_S, heal
from tests.integration.control.test_control import settings_of
from tests.integration.control.test_control_ledger import settled
from tests.integration.control_clients import FAR_MS, Clients, by_client, by_http, by_record, write_script
from tests.integration.control_history import Asked, History, Message, read_history
from tests.integration.control_ledger import Rule, judge
from tests.integration.scenarios import SESSION, share
from tests.integration.sidecars import API, LOG_APPEND_TIME, Sidecar, Sidecars, set_stage
from tests.waiting import eventually

SETTINGS: Final = {**SESSION, "STARTUP_TIMEOUT": "10m"}
"""No instance ends because the nodes of a busy machine take long to come back."""
RATES_MS: Final = (1_000, 1_000, 1_000, 700, 250)
"""Mean time between two actions: HTTP at one, two and api, the client class, own records."""
ROUND_S: Final = 60
TAIL_S: Final = 15
"""The clients go on for so long after the last fault."""
LAST_S: Final = 600
"""The last fault may begin at the end, and the clients have something to do until it is over."""
SETTLE_S: Final = 1_200.0
"""What was put off while its origin was paused comes within a quarter of an hour."""


@click.command()
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(0.5, 24 * 60))
@click.option("--per-second", default=60, show_default=True, type=click.IntRange(1, 1_000), help="Messages sent.")
@click.option("--seed", default=0, help="Of what is done; 0 makes one up.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep state folders and logs there.")
@click.option("--only", multiple=True, help="The name of a fault, as in by_fault; no others come.")
def main(minutes: float, per_second: int, seed: int, folder: Path | None, only: Sequence[str]) -> None:
    """Let nodes and instances fail for so long, and print one line of JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = seed or random.SystemRandom().randrange(1, 2**31)
    print(f"--seed {seed} repeats what is done, not what comes of it", file=sys.stderr, flush=True)
    # The ledger needs every transaction's checkpoint, and compaction would take all but the last away.
    with (
        tempfile.TemporaryDirectory() as temporary,
        LocalCluster(properties={"log.cleaner.enable": "false"}) as cluster,
    ):
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        report = run(cluster, home, random.Random(seed), minutes, per_second, only)
    click.echo(json.dumps({"minutes": minutes, "seed": seed, **report}))
    raise SystemExit(0 if report["right"] else 1)


def run(
    cluster: LocalCluster, home: Path, dice: random.Random, minutes: float, per_second: int, only: Sequence[str]
) -> dict[str, Any]:
    """Run clients and faults for so long, and return what came of it."""
    stage = set_stage(cluster.bootstrap_servers)
    origins = (stage.origin, f"{stage.app_id}-invoices")
    create_topic(stage.bootstrap, origins[1], 2, LOG_APPEND_TIME)
    length_s = int(minutes * 60) + TAIL_S + LAST_S
    script = write_script(
        dice,
        messages=per_second * length_s,
        rates=RATES_MS,
        length_ms=length_s * 1_000,
        stage=stage,
        far_ms=FAR_MS + length_s * 1_000,
        rounds=max(1, length_s // ROUND_S),
        replacing=0.3,
    )
    sidecars = Sidecars(home)
    try:
        instances = [
            *(sidecars.make(name, stage, INSTANCE_ID=name, **SETTINGS) for name in ("one", "two")),
            *(sidecars.make(name, stage, **SETTINGS) for name in ("three", "four")),
        ]
        api = sidecars.make("api", stage)
        for each in instances[:2]:
            each.start()
        api.start(API)
        api.await_ready(LONG_S)
        eventually(lambda: share(*instances[:2]), LONG_S, "both have partitions")
        disturber = Disturber(dice, cluster, stage, sidecars, instances, only)
        clients = Clients(stage, origins, script, SystemClock().wall_ms())
        act(clients, disturber, minutes, [*instances[:2], api])
        heal(cluster)
        waiting, earlier = settled(stage, api, SETTLE_S), disturber.alone.earlier
        history = read_history(stage, origins, waiting, clients.answers, SETTLE_S, earlier)
        history.origins_fail, history.rolled_back = True, disturber.alone.rolled_back
    finally:
        for each in sidecars.all:
            each.end()
    return report_of(history, disturber, origins[0])


def act(clients: Clients, disturber: Disturber, minutes: float, asked: Sequence[Sidecar]) -> None:
    """Let the clients act and the faults come; everything runs again and is resumed when it returns."""
    until_s = SystemClock().monotonic_s() + minutes * 60
    with ControlClient(settings_of(clients.stage)) as control, ThreadPoolExecutor(len(RATES_MS) + 1) as threads:
        ways = [*map(by_http, asked), by_client(control), by_record(clients.stage, "raw")]
        at_work: list[Future[None]] = [threads.submit(clients.act, number, do) for number, do in enumerate(ways)]
        at_work.append(threads.submit(clients.send))
        broken = threading.Event()
        for each in at_work:
            each.add_done_callback(lambda done: broken.set() if done.exception() else None)
        try:
            disturber.disturb_until(until_s, broken)
            broken.wait(TAIL_S)
        finally:
            clients.stopped.set()
        for each in at_work:
            each.result()
        eventually(
            lambda: control.act(ControlKind.RESUME, clients.origins[1], deadline_s=LONG_S).outcome, LONG_S, "resumed"
        )


def report_of(history: History, disturber: Disturber, origin: str) -> dict[str, Any]:
    """Return the figures."""
    verdict = judge(history)
    for each in verdict.faults[:20]:
        print(each, file=sys.stderr)
    rules = Counter(fault.rule for fault in verdict.faults)
    named = (Rule.LOST, Rule.TWICE, Rule.EARLY)
    ended = [f"ended by itself: {each}" for each in disturber.ended]
    reasons = [*(f"not so {count} times: {rule}" for rule, count in rules.items()), *disturber.wrong, *ended]
    return {
        "right": not reasons,
        "reasons": reasons,
        "faults": disturber.faults.total(),
        "kills": disturber.kills,
        "messages": sum(isinstance(item, Message) for item in history.items.values()),
        "controls": sum(isinstance(item, Asked) for item in history.items.values()),
        "fired": len(history.delivered),
        **{rule.name.lower(): rules[rule] for rule in named},
        "other": sum(count for rule, count in rules.items() if rule not in named),
        "came_again": verdict.came_again,
        "answered_anew": verdict.answered_anew,
        "ended_by_themselves": disturber.ended,
        "longest_stop_s": longest_stop_s(history, origin),
        "longest_outage_s": round(disturber.longest_outage_s, 1),
        "recovered_s": recovered_s(history, origin, disturber.healed_ms),
        "by_fault": dict(sorted(disturber.faults.items())),
    }


def longest_stop_s(history: History, origin: str) -> float:
    """Return the longest time in which an input partition fired nothing to an origin that is never paused."""
    stamps: defaultdict[int, list[int]] = defaultdict(list)
    for each in history.delivered:
        if each.origin == origin:
            stamps[each.timer.partition].append(each.stamp_ms)
    gaps = (later - sooner for found in stamps.values() for sooner, later in pairwise(sorted(found)))
    return round(max(gaps, default=0) / 1_000, 1)


def recovered_s(history: History, origin: str, healed_ms: int) -> float:
    """Return how long after the last fault the last came of what was due before its end."""
    came = (each.stamp_ms for each in history.delivered if each.origin == origin and each.was_due_ms < healed_ms)
    return round(max(0, max(came, default=0) - healed_ms) / 1_000, 1)


if __name__ == "__main__":
    main()
