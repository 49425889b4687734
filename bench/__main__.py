"""python -m bench [NAME...]: measure, print the table and one line of JSON, exit 1 when a target is missed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from bench.attacks import NAMES as ATTACKS
from bench.attacks import attacks
from bench.cluster import Cluster
from bench.compare import checked_out, compared
from bench.figures import TARGETS, Figure, json_line, table
from bench.large import large
from bench.lateness import lateness
from bench.operating import cancel, counts
from bench.operating_crowd import crowd
from bench.pending import pending_figures
from bench.rates import KEPT, Rates
from bench.runs import Act, once, repeat
from bench.spark import shards, spark
from bench.waiting import say
from sidecar import __version__
from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker

RATIOS = ("store", "fire", "both", "redrive")
LATENESS = ("lateness_p50", "lateness_p99", "early")
ORDER = tuple(f"order_{way}{what}" for way in ("store", "fire") for what in ("", "_cpu"))
PENDING = ("memory", "pending", "restart", "restore")
CROWD = ("listing", "asked")
NAMES = ("relay", *RATIOS, "lateness", *PENDING, "counts", *CROWD, "cancel")
NAMED = ("attacks", "order", "large", "spark", "shards")
"""The figures that are measured only when named: the cost of a policy or of attacks, and what needs 30 GB of disk, or a
JDK."""


class Measurement(NamedTuple):
    """A group of figures that are measured together."""

    figures: tuple[str, ...]
    act: Act
    runs: int | None = 1
    """Runs that count; None: the measurement repeats its parts itself."""


@click.command(epilog="Example: python -m bench store fire --quick")
@click.argument("names", nargs=-1, type=click.Choice((*NAMES, *NAMED)))
@click.option("--quick", is_flag=True, help="Fewer messages, each figure once: a look, not a figure.")
@click.option("--gate/--no-gate", default=True, help="Exit with 1 when a target is missed; else always with 0.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 9), help="Runs of each figure that count.")
@click.option(
    "--large", "most", default=10_000_000, show_default=True, type=click.IntRange(100_000), help="Messages of large."
)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep state folders and logs there.")
@click.option("--against", metavar="REF", help="Compare with this commit, in alternation; no targets.")
def main(
    names: tuple[str, ...],
    *,
    quick: bool,
    gate: bool,
    runs: int,
    most: int,
    folder: Path | None,
    against: str | None,
) -> None:
    """Measure the sidecar against a broker on this machine: all figures, or only the NAMES.

    Those of Spark (spark, shards) are measured when they are named: they need a JDK. So are attacks, during which
    messages fall due while strangers attack the HTTP port; order, which compares store and fire with and without an
    order per key; and large, which needs 3 GB of disk for each million of messages.

    A run during which the hypervisor takes more than 5 % of the processor time is repeated, at most five times. Then
    the figure is noisy: neither met nor missed.
    """
    started_s = SystemClock().monotonic_s()
    wanted, runs = set(names or NAMES), 1 if quick else runs
    with tempfile.TemporaryDirectory(prefix="retry-sidecar-bench-") as temporary, LocalBroker() as broker:
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        if against is not None:
            with checked_out(against) as tree:
                click.echo(_compare(broker.bootstrap_servers, home, tree, wanted, most, quick=quick, runs=runs))
            return
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create("bench-dlq", "bench-origin-day")
        figures = [
            figure
            for each in _measurements(cluster, home, wanted, most, quick=quick, runs=runs)
            for figure in (
                once(each.figures, each.act) if each.runs is None else repeat(each.figures, each.act, each.runs)
            )
        ]
    order = list(TARGETS)
    figures.sort(key=lambda figure: order.index(figure.name))
    facts = {
        "version": __version__,
        "cores": len(os.sched_getaffinity(0)),
        "quick": quick,
        "seconds": round(SystemClock().monotonic_s() - started_s),
    }
    click.echo(table(figures))
    click.echo(json_line(figures, facts))
    if gate and any(figure.verdict in {"MISS", "FAIL"} for figure in figures):
        raise click.exceptions.Exit(1)


def _compare(servers: str, folder: Path, tree: Path, wanted: set[str], most: int, *, quick: bool, runs: int) -> str:
    there, here = Cluster(servers, tree), Cluster(servers)
    here.create("bench-dlq", "bench-origin-day")
    pairs = zip(
        _measurements(there, folder, wanted, most, quick=quick, runs=1),
        _measurements(here, folder, wanted, most, quick=quick, runs=1),
        strict=True,
    )
    return compared([(old.figures, old.act, new.act) for old, new in pairs], runs)


def _measurements(
    cluster: Cluster, folder: Path, wanted: set[str], most: int, *, quick: bool, runs: int
) -> list[Measurement]:
    rates = Rates(cluster, folder, 60_000 if quick else 200_000)
    pending = tuple(name for name in PENDING if name in wanted)
    listing, asked = ("listing",) * ("listing" in wanted), ("asked", "asked_loss") * ("asked" in wanted)
    many, short_s, long_s = (100_000, 8, 8) if quick else (1_000_000, 25, 60)
    every = {
        "relay": Measurement(("relay",), rates.relay, runs),
        **{
            name: Measurement((name, f"{name}_rate", f"{name}_cpu"), partial(rates.beside_relay, name), runs)
            for name in RATIOS
        },
        "lateness": Measurement(LATENESS, partial(_warm, rates, partial(lateness, cluster, folder, short_s)), runs),
        **dict.fromkeys(
            PENDING, Measurement(pending, partial(pending_figures, cluster, folder, many, wanted, runs), None)
        ),
        "counts": Measurement(("counts_p50", "counts_max"), partial(counts, cluster, folder, long_s)),
        **dict.fromkeys(
            CROWD, Measurement(listing + asked, partial(crowd, cluster, folder, runs, wanted, quick=quick))
        ),
        "cancel": Measurement(("cancel_p50", "cancel_p99"), partial(cancel, cluster, folder, long_s)),
        "attacks": Measurement(ATTACKS, partial(_warm, rates, partial(attacks, cluster, folder)), runs),
        "order": Measurement(ORDER, rates.order, runs),
        "large": Measurement(_of_large(), partial(large, cluster, folder, min(most, many) if quick else most), None),
        "spark": Measurement(_of_spark(shards=False), partial(spark, cluster, folder, quick=quick)),
        "shards": Measurement(_of_spark(shards=True), partial(shards, cluster, folder, quick=quick)),
    }
    # Figures that are measured together are one measurement with several names.
    chosen = {each.figures: each for name, each in every.items() if name in wanted}
    return [each._replace(act=partial(_fresh, cluster, each.act)) for each in chosen.values()]


def _of_large() -> tuple[str, ...]:
    return tuple(name for name in TARGETS if name.startswith("large_"))


def _of_spark(*, shards: bool) -> tuple[str, ...]:
    """Return the figures of the Spark engine: those by number of state partitions end with it."""
    return tuple(name for name in TARGETS if name.startswith("spark") and name[-1].isdigit() == shards)


def _warm(rates: Rates, act: Act) -> Sequence[Figure]:
    rates.warm_up()
    return act()


def _fresh(cluster: Cluster, act: Act) -> Sequence[Figure]:
    """Measure on a broker without the topics of former measurements."""
    cluster.delete_except(*KEPT)
    return act()


def cli(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement; a failure of the measurement itself is an exception."""
    say("python -m bench: figures against one local broker; nothing else should run on this machine")
    main(arguments, prog_name="python -m bench")


if __name__ == "__main__":
    cli()
