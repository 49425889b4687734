"""Prints what is left of a small changelog, as JSON; in a process of its own, which has its own session."""

from __future__ import annotations

import json

from sidecar.spark.handover.import_export import last_of_each_key
from sidecar.spark.session import open_session

LOG = [
    (0, 0, b"b1", b"old"),
    (0, 1, b"b2", b"only"),
    (1, 0, b"b1", b"of another partition"),
    (0, 2, b"b1", b"new"),
    (0, 3, b"b3", b"deleted"),
    (0, 4, b"b3", None),
]

if __name__ == "__main__":
    session = open_session("compacted", "local[1]", {"spark.driver.memory": "512m"}, 2)
    records = session.createDataFrame(LOG, "partition int, offset long, key binary, value binary")
    found = last_of_each_key(records).collect()
    print(
        json.dumps(
            sorted(
                (each.partition, bytes(each.key).decode(), None if each.value is None else bytes(each.value).decode())
                for each in found
            )
        )
    )
    session.stop()
