"""python -m bench [NAME...]: measure, print the table and one line of JSON, exit 1 when a target is missed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from bench.cluster import Cluster
from bench.figures import TARGETS, Figure, json_line, table
from bench.lateness import lateness
from bench.operating import cancel, counts
from bench.operating_crowd import crowd
from bench.pending import pending_figures
from bench.rates import RELAY_TOPIC, STORE_TOPIC, Rates, say
from bench.spark import shards, spark
from sidecar import __version__
from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker

RATIOS = ("store", "fire", "both")
PENDING = {"memory", "pending", "restart", "restore"}
CROWD = {"asked", "listing"}
NAMES = ("relay", *RATIOS, "lateness", *sorted(PENDING), "counts", *sorted(CROWD), "cancel")
SPARK = ("spark", "shards")
"""The figures that are measured only when named: they need a JDK."""


@click.command(epilog="Example: python -m bench store fire --quick")
@click.argument("names", nargs=-1, type=click.Choice((*NAMES, *SPARK)))
@click.option("--quick", is_flag=True, help="Fewer messages, each rate once: a look, not a figure.")
@click.option("--gate/--no-gate", default=True, help="Exit with 1 when a target is missed; else always with 0.")
@click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1, 9), help="How often each rate is measured."
)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep state folders and logs there.")
def main(names: tuple[str, ...], *, quick: bool, gate: bool, runs: int, folder: Path | None) -> None:
    """Measure the sidecar against a broker on this machine: all figures, or only the NAMES.

    Those of Spark (spark, shards) are measured when they are named: they need a JDK.
    """
    started_s = SystemClock().monotonic_s()
    wanted = set(names or NAMES)
    with tempfile.TemporaryDirectory(prefix="retry-sidecar-bench-") as temporary, LocalBroker() as broker:
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create("bench-dlq", "bench-origin-day")
        figures = _measure(cluster, home, wanted, quick=quick, runs=1 if quick else runs)
    facts = {
        "version": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "quick": quick,
        "seconds": round(SystemClock().monotonic_s() - started_s),
    }
    click.echo(table(figures))
    click.echo(json_line(figures, facts))
    if gate and not all(figure.met for figure in figures):
        raise click.exceptions.Exit(1)


def _measure(cluster: Cluster, folder: Path, wanted: set[str], *, quick: bool, runs: int) -> list[Figure]:
    rates = Rates(cluster, folder, 60_000 if quick else 200_000)
    ratios = [name for name in RATIOS if name in wanted]
    # The yardstick is measured before and after each figure, so a slow spell of the machine affects both.
    if ratios or wanted & {"relay", "lateness"}:
        rates.warm_up()
    if ratios or "relay" in wanted:
        rates.relay()
    for _ in range(runs):
        for name in ratios:
            getattr(rates, name)()
            cluster.delete_except("bench-dlq", "bench-origin-day", RELAY_TOPIC, STORE_TOPIC)
        if ratios or "relay" in wanted:
            rates.relay()
    figures: list[Figure] = []
    if "lateness" in wanted:
        figures += lateness(cluster, folder, 8 if quick else 25)
    if wanted & PENDING:
        cluster.delete_except("bench-dlq", "bench-origin-day")
        figures += pending_figures(cluster, folder, 100_000 if quick else 1_000_000, wanted)
    if "counts" in wanted:
        figures += counts(cluster, folder, 8 if quick else 60)
    if wanted & CROWD:
        cluster.delete_except("bench-dlq", "bench-origin-day")
        figures += crowd(cluster, folder, runs, wanted, quick=quick)
    if "cancel" in wanted:
        figures += cancel(cluster, folder, 8 if quick else 60)
    if "spark" in wanted:
        figures += spark(cluster, folder, quick=quick)
    if "shards" in wanted:
        figures += shards(cluster, folder, quick=quick)
    order = list(TARGETS)
    return sorted([*rates.figures(), *figures], key=lambda figure: order.index(figure.name))


def cli(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement; a failure of the measurement itself is an exception."""
    say("python -m bench: figures against one local broker; nothing else should run on this machine")
    main(arguments, prog_name="python -m bench")


if __name__ == "__main__":
    cli()
