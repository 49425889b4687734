"""Asks the broker for origin topics, on the executors."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.changelog.codec import Closure
from sidecar.clock import SystemClock
from sidecar.kafka.admin.catalogue import PARTITIONS_MAX, Catalogue
from sidecar.kafka.admin.cluster import Admin
from sidecar.settings import Settings
from sidecar.spark.stream.topic_metadata import TopicMetadata

WAIT_S: Final = 5.0
_STEP_S: Final = 0.005


class BrokerLookup:
    """Looks topics up with one admin client, which lives as long as the worker process."""

    def __init__(self, settings: Settings) -> None:
        self._admin = Admin(settings)
        self._clock = SystemClock()
        self._pause = threading.Event()
        self.now_ms = 0
        """The instant of the micro-batch, which dates the metadata."""

    def __call__(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        wanted = set(names)
        catalogue = Catalogue(self._admin)
        catalogue.expected = wanted
        catalogue.want(wanted)
        until_s = self._clock.monotonic_s() + WAIT_S
        while True:
            now_s = self._clock.monotonic_s()
            catalogue.advance(now_s)
            found = {name for name in wanted if name in catalogue.origins or name in catalogue.unknown}
            if found == wanted or now_s >= until_s:
                return {name: self._metadata(catalogue, name) for name in found}
            self._pause.wait(_STEP_S)

    def _metadata(self, catalogue: Catalogue, name: str) -> TopicMetadata:
        origin = catalogue.origins.get(name)
        if origin is None:
            return TopicMetadata(0, 0, asked_ms=self.now_ms)
        why = ""
        if name in catalogue.denied:
            why = Closure.UNAUTHORISED.value
        elif name in catalogue.leaderless:
            why = Closure.UNREACHABLE.value
        # The catalogue gives an expected topic that may not be described the greatest number of partitions.
        forbidden_ms = self.now_ms if origin.partitions == PARTITIONS_MAX else 0
        return TopicMetadata(
            origin.partitions, origin.max_message_bytes, why, asked_ms=self.now_ms, forbidden_ms=forbidden_ms
        )
