"""A program that runs a query of quick micro-batches without reading them, and prints what was passed on in the end.

It is a separate process, because a JVM lives as long as the process that started it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions as f

from sidecar.spark.session import open_session
from sidecar.spark.stream.batches import Batches

BATCHES = 10


def main(folder: str) -> None:
    session = open_session("batches", "local[2]", {}, 1)
    told: list[tuple[int, list[int]]] = []

    def progressed(progress: Mapping[str, Any]) -> None:
        told.append((progress["batchId"], sorted(progress["observedMetrics"]["seen"]["values"])))

    batches = Batches(progressed)
    session.streams.addListener(batches)
    runs: list[int] = []
    for _ in range(2):
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        seen = rows.observe("seen", f.collect_list("value").alias("values"))
        writer = seen.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        pause = threading.Event()
        before = len(told)
        while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < BATCHES * (len(runs) + 1):
            pause.wait(0.1)
        assert len(told) == before, "nothing was passed on yet"
        query.stop()
        runs.append(batches.pass_on_rest(str(query.runId)))
        assert batches.pass_on() == 0
    session.stop()
    print(json.dumps({"told": told, "runs": runs}))


if __name__ == "__main__":
    main(sys.argv[1])
