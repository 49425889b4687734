"""How what is delivered is compressed, as the broker stores it: as the sidecar is set, or as its topic says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import pytest

from tests.broker import create_topic, local_broker, read_committed
from tests.integration.messages import Given, Pairs, send
from tests.integration.sidecars import Sidecars, set_stage

pytestmark = [pytest.mark.broker, pytest.mark.slow]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By the number in the attributes of a batch."""
_BATCH_HEAD: Final = struct.Struct(">qiibIH")
"""Base offset, length, leader epoch, format, checksum, attributes."""
_LENGTH_FROM: Final = 12
"""A batch's length counts from here."""
_CONTROL: Final = 0x20


def codecs(data_dir: Path, topic: str) -> set[str]:
    """Return the codecs of the batches of records that a broker keeps of a topic."""
    found = set()
    for path in data_dir.rglob("*.log"):
        if path.parent.name.rpartition("-")[0] == topic:
            segment, at = path.read_bytes(), 0
            while at + _BATCH_HEAD.size <= len(segment):
                _, length, _, magic, _, attributes = _BATCH_HEAD.unpack_from(segment, at)
                if magic != 2:
                    # A segment is longer than what is written.
                    break
                if not attributes & _CONTROL:
                    found.add(CODECS[attributes & 7])
                at += _LENGTH_FROM + length
    return found


def test_deliveries_are_compressed_as_the_sidecar_is_set_or_as_their_topic_says(
    tmp_path: Path, sidecars: Sidecars
) -> None:
    with local_broker(data_dir=tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        stage = set_stage(address)
        own = {codec: f"{stage.app_id}-{codec}" for codec in ("uncompressed", "snappy", "lz4", "zstd")}
        for codec, topic in own.items():
            create_topic(address, topic, config={"compression.type": codec})
        sidecars.start("one", stage, CLIENT_COMPRESSION_TYPE="gzip")
        origins = [stage.origin, *own.values()]
        for origin in origins:
            headers: Pairs = [
                ("retry-origin-topic", origin.encode()),
                ("retry-delay-ms", b"1"),
            ]
            send(address, stage.input_topic, Given(b"v" * 2_000, b"k", headers))
        read_committed(address, origins, 60, until=lambda found: {each.topic for each in found} == set(origins))
        stored = {topic: codecs(tmp_path / "data", topic) for topic in origins}
    wanted = {topic: {codec.replace("uncompressed", "none")} for codec, topic in own.items()}
    assert stored == {stage.origin: {"gzip"}, **wanted}
