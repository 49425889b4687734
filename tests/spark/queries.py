"""Runs the commands of Spark for the tests, as operators do: in a separate process with a JVM."""

from __future__ import annotations

from pathlib import Path

from tests.broker import Read, read_committed
from tests.integration.messages import marked
from tests.integration.sidecars import Stage

WAIT_S = 300.0
"""A JVM that starts beside other tests takes more than a minute."""


def command(name: str, folder: Path, *more: str) -> list[str]:
    """Return the arguments of `spark <name>` with a checkpoint below the folder."""
    own = ("--checkpoint", f"file://{folder}/checkpoint", "--master", "local[2]", "--conf", "spark.driver.memory=1g")
    return ["-m", "sidecar", "spark", name, *own, *more]


def deliveries(stage: Stage, marker: bytes, count: int) -> list[Read]:
    """Return the records of the origin with this header `test`, once there are as many."""

    def enough(seen: list[Read]) -> bool:
        return len(marked(seen, marker)) >= count

    return marked(read_committed(stage.bootstrap, [stage.origin], WAIT_S, until=enough), marker)
