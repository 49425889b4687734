"""The lookup of origins on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from sidecar.settings import Settings
from sidecar.spark.stream.lookup import BrokerLookup
from sidecar.spark.stream.topic_metadata import TopicMetadata
from tests.broker import create_topic
from tests.integration.permissions import broker_with_permissions, deny

pytestmark = pytest.mark.broker


def test_a_topic_that_may_not_be_described_differs_from_one_that_may_not_be_written() -> None:
    with broker_with_permissions() as bootstrap:
        for name in ("open", "guarded", "secret"):
            create_topic(bootstrap, name, 3)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        deny(admin, ResourceType.TOPIC, "guarded", AclOperation.WRITE)
        deny(admin, ResourceType.TOPIC, "secret", AclOperation.DESCRIBE)
        lookup = BrokerLookup(Settings(bootstrap_servers=bootstrap))
        lookup.now_ms = 7
        topics = lookup(["open", "guarded", "secret", "none"])
    size = topics["open"].max_message_bytes
    assert topics["open"] == TopicMetadata(3, size, asked_ms=7)
    assert topics["guarded"] == TopicMetadata(3, size, "unauthorised", asked_ms=7)
    assert topics["none"] == TopicMetadata(0, 0, asked_ms=7)
    assert (topics["secret"].closure, topics["secret"].forbidden_ms) == ("unauthorised", 7)
