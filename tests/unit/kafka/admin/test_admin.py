"""The admin client itself."""

from __future__ import annotations

import gc
import weakref

from confluent_kafka import KafkaError

from sidecar.kafka.admin.cluster import Admin
from sidecar.settings import Settings

AWAY = Settings(bootstrap_servers="127.0.0.1:1")


def test_a_client_that_nobody_holds_is_destroyed_at_once_and_not_by_the_garbage_collector() -> None:
    admin = Admin(AWAY)
    kept = weakref.ref(admin)
    gc.disable()
    try:
        del admin
        assert kept() is None
    finally:
        gc.enable()


def test_it_remembers_why_brokers_cannot_be_reached_and_not_the_summary() -> None:
    admin = Admin(AWAY)
    remember = admin._last_error
    remember(KafkaError(KafkaError._TRANSPORT, "refused"))
    remember(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all are down"))
    assert admin.last_error == "refused"
