"""The simulated client library says with a record what librdkafka says, and the adapter blames no record for it."""

from __future__ import annotations

import random
from typing import Final

import pytest
from confluent_kafka import KafkaException

from sidecar.engine.ports import Outgoing
from sidecar.errors import TransactionFailed
from sidecar.settings import Settings
from tests.simulation.fakes.cluster import Cluster, Link
from tests.simulation.fakes.library import DOUBTS
from tests.simulation.fakes.logs import Row
from tests.simulation.fakes.producer import FakeProducer
from tests.simulation.fakes.timeline import InstanceClock, Timeline

SETTINGS: Final = Settings(streams_app_id="app")
ORIGIN: Final = "orders"
SEEDS: Final = 40
"""So many bring every way to be told."""


class Fenced:
    """A producer with a transaction under way, on a cluster of one origin."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.timeline = Timeline(rng)
        self.cluster = Cluster(self.timeline, rng)
        for name in (SETTINGS.changelog_topic, ORIGIN):
            self.cluster.create(name, 1, 1_000_000)
        self.producer = self.made()
        self.producer.init(30.0)
        self.producer.begin()

    def made(self) -> FakeProducer:
        return FakeProducer(self.cluster, Link(), InstanceClock(self.timeline), SETTINGS, "app-one")

    def write(self) -> None:
        for _ in self.producer.write_changelog(SETTINGS.changelog_topic, 0, [(b"a", b"1")]):
            pass
        outgoing = [Outgoing(ORIGIN, 0, b"k", b"v", [], 0, b"source")]
        for _ in self.producer.write_outgoing(0, outgoing, traced=True):
            pass

    def commit(self) -> TransactionFailed:
        """Write and commit, which must fail and blame no record; then abort if that is asked for."""
        with pytest.raises(TransactionFailed) as failed:
            self._commit()
        assert not self.producer.refused
        assert not self.producer.unwritten
        assert not self.producer.unwritten_for
        return failed.value

    def _commit(self) -> None:
        self.write()
        self.producer.commit()

    def go_on(self) -> None:
        """Commit one transaction after the other, until one fails."""
        while True:
            self._commit()
            self.producer.begin()

    @property
    def seen(self) -> list[Row]:
        self.timeline.advance(1.0)
        return [each.row for each in self.cluster.log(ORIGIN, 0).read(0, 10)[0]]


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_transaction_that_a_broker_does_not_know_is_aborted_and_its_producer_replaced(doubt: str) -> None:
    for seed in range(SEEDS):
        fenced = Fenced(seed)
        fenced.producer.library.doubt = doubt
        with pytest.raises(TransactionFailed) as failed:
            fenced.go_on()
        assert (failed.value.unknown, failed.value.fenced) == (False, False)
        assert not fenced.producer.refused
        assert not fenced.producer.unwritten_for
        with pytest.raises(TransactionFailed, match=doubt) as aborted:
            fenced.producer.abort()
        assert aborted.value.replace


def test_a_fence_is_told_with_any_record_or_with_none_and_blames_no_record() -> None:
    told = set[tuple[bool, bool]]()
    for seed in range(SEEDS):
        fenced = Fenced(seed)
        if seed % 2:
            fenced.write()
        fenced.made().init(30.0)
        failure = fenced.commit()
        assert failure.replace
        if not failure.unknown:
            with pytest.raises(TransactionFailed) as worse:
                fenced.producer.abort()
            assert worse.value.fenced
        told.add((failure.unknown, failure.fenced))
        assert not fenced.seen
    assert told == {(True, True), (False, False)}, "it is final at once, or seen when the transaction is aborted"


def test_after_a_refusal_the_sequence_of_the_same_producer_has_a_hole() -> None:
    fenced = Fenced(0)
    library = fenced.producer.library
    fenced.cluster.topics[ORIGIN].max_bytes = 10
    fenced.write()
    with pytest.raises(TransactionFailed, match="refused"):
        fenced.producer.commit()
    library.abort_transaction(5.0)
    library.begin_transaction()
    library.produce(SETTINGS.changelog_topic, b"1", b"a", 0)
    with pytest.raises(KafkaException, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        library.commit_transaction(5.0)
