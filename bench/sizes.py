"""The largest message that comes back, by its origin's limit and the codec, and the slowest link that carries all.

python -m bench.sizes largest
python -m bench.sizes slow --rates 200000 50000 10000
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster import Cluster
from bench.link import Link
from bench.sidecar_process import SidecarProcess
from bench.traffic import send
from bench.waiting import say, until
from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import LocalBroker

LIMITS: Final = (1_048_588, 5_242_880)
CODECS: Final = ("none", "lz4", "zstd")
RETRY_TOPIC_BYTES: Final = 20_000_000
RATES: Final = (200_000, 50_000, 10_000, 3_000)
MESSAGE_BYTES: Final = 700
"""The approximate size of a message of `traffic`, uncompressed; its values repeat, so batches compress well."""
LINK_S: Final = 40
"""The time that a link needs for the messages alone, uncompressed."""
_HOUR_MS: Final = 3_600_000
_ANSWER_S: Final = 60.0
_CLOCK: Final = SystemClock()


def noise(size: int) -> bytes:
    """Return bytes that no codec compresses."""
    return random.Random(size).randbytes(size)


def prose(size: int) -> bytes:
    """Return JSON of one form, which travels in a fraction of its size."""
    line = json.dumps({"order": 1, "customer": "example", "lines": [{"sku": "A-1", "quantity": 2}] * 20}).encode()
    return (line * (size // len(line) + 1))[:size]


KINDS: Final = {"bytes that do not compress": noise, "JSON": prose}


def ladder(limit: int) -> list[int]:
    """Return the sizes to try: in steps of 1 % around the limit, then larger and larger ones."""
    return [limit * percent // 100 for percent in range(96, 103)] + [2 * limit, 10_000_000, 20_000_000, 29_000_000]


def largest(folder: Path) -> None:
    """Print the largest value that came back, for each limit, codec and kind of value."""
    with LocalBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        _create(admin, "bench-dlq")
        for codec in CODECS:
            app_id = f"bench-sizes-{codec}"
            _create(admin, app_id, RETRY_TOPIC_BYTES)
            origins = {f"bench-origin-{codec}-{limit}": limit for limit in LIMITS}
            for name, limit in origins.items():
                _create(admin, name, limit)
            servers = broker.bootstrap_servers
            with SidecarProcess(servers, app_id, app_id, folder, CLIENT_COMPRESSION_TYPE=codec) as sidecar:
                sidecar.await_ready()
                for name, limit in origins.items():
                    for kind, make in KINDS.items():
                        found = max(_came_back(servers, app_id, name, [make(size) for size in ladder(limit)]))
                        print(f"{limit:>10,}  {codec:5}  {kind:26}  {found / 1e6:.2f} MB", flush=True)


def _came_back(servers: str, topic: str, origin: str, values: Sequence[bytes]) -> list[int]:
    """Send values one after another as long as they come back; return their sizes."""
    common = {"bootstrap.servers": servers, "log_level": 0}
    producer = Producer({**common, "compression.type": "zstd", "message.max.bytes": 100_000_000})
    consumer = Consumer({**common, "group.id": "bench-sizes", "enable.auto.commit": False})
    sizes, failures = [0], list[KafkaError]()

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    try:
        consumer.assign([TopicPartition(name, 0, 0) for name in (origin, "bench-dlq")])
        for value in values:
            marker = uuid.uuid4().bytes
            headers: Any = [("retry-origin-topic", origin.encode()), ("retry-delay-ms", b"0"), ("marker", marker)]
            producer.produce(topic, value, b"k", headers=headers, on_delivery=delivered)
            # The retry topic takes no more, or the message went to the DLQ.
            if producer.flush(_ANSWER_S) or failures or _where(consumer, marker) != origin:
                break
            sizes.append(len(value))
    finally:
        consumer.close()
    return sizes


def _where(consumer: Consumer, marker: bytes) -> str:
    """Return to which topic the message with this header `marker` has come."""
    end_s = _CLOCK.monotonic_s() + _ANSWER_S
    while _CLOCK.monotonic_s() < end_s:
        message = consumer.poll(1.0)
        if message is not None and ("marker", marker) in (message.headers() or ()):
            return message.topic() or ""
    raise TimeoutError(f"a message has come neither to its origin nor to the DLQ within {_ANSWER_S:g} s")


def _create(admin: AdminClient, name: str, bytes_max: int = 1_048_588) -> None:
    config = {"max.message.bytes": str(bytes_max)}
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1, config=config)])[name].result(_ANSWER_S)


def slow(folder: Path, rates: Sequence[int], deadline_s: float) -> None:
    """Print the time of messages over links of these bytes a second; half are due, half wait for an hour."""
    with Link() as link, LocalBroker(link.broker_port, properties=link.properties) as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create("bench-dlq")
        for rate in rates:
            half = max(2, rate * LINK_S // MESSAGE_BYTES // 2)
            name = f"link-{rate}"
            topic, origin = f"bench-{name}", f"bench-origin-{name}"
            cluster.create(topic, origin)
            now_ms = _CLOCK.wall_ms()
            send(broker.bootstrap_servers, topic, origin, [now_ms, now_ms + _HOUR_MS] * half)
            link.bytes_a_second = rate
            with SidecarProcess(broker.bootstrap_servers, topic, topic, folder) as sidecar:
                try:
                    began_s = _CLOCK.monotonic_s()
                    until(lambda: _done(sidecar, half), deadline_s, f"{2 * half} messages at {rate} bytes/s", 0.5)  # noqa: B023
                    seconds = _CLOCK.monotonic_s() - began_s
                    ended = _by_label(sidecar, "retry_sidecar_transactions_total")
                finally:
                    link.bytes_a_second = math.inf
            cluster.arrivals(origin, half)
            print(f"{rate:>8,} bytes/s: {2 * half} messages in {seconds:.0f} s; transactions {ended}", flush=True)


def _done(sidecar: SidecarProcess, half: int) -> bool:
    fired = sum(_by_label(sidecar, "retry_sidecar_fired_total").values())
    say(f"{fired:.0f} fired, {sidecar.pending() if fired else 0} wait")
    return fired == half and sidecar.pending() == half


def _by_label(sidecar: SidecarProcess, metric: str) -> dict[str, float]:
    """Return the values of a metric with one label, by that."""
    sidecar.check()
    connection = sidecar.connect()
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except ConnectionRefusedError:
        return {}
    finally:
        connection.close()
    rows = (line.rpartition(" ") for line in text.splitlines() if line.startswith(metric + "{"))
    return {labels.split('"')[1]: float(value) for labels, _, value in rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("largest", "slow"))
    parser.add_argument("--rates", nargs="+", type=int, default=RATES, help="Of the link, bytes a second.")
    parser.add_argument("--deadline", type=float, default=300.0, help="Of each rate, seconds.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="retry-sidecar-bench-") as folder:
        if given.what == "largest":
            largest(Path(folder))
        else:
            slow(Path(folder), given.rates, given.deadline)


if __name__ == "__main__":
    main()
