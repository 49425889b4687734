"""The allow-list of origins."""

from __future__ import annotations

import pytest

from sidecar.model import Reason, Rejection, Request
from sidecar.policy import Policy, PolicyConfig

OWN = frozenset({"kafka-retry-retry-queue-changelog", "kafka-retry-status"})


def allows(topic: str, *origin_topics: str) -> bool:
    policy = Policy(PolicyConfig(origin_topics=origin_topics, internal_topics=OWN))
    return policy.origin_allowed(topic)


@pytest.mark.parametrize(
    ("topic", "origin_topics"),
    [
        ("orders", ["*"]),
        ("orders", ["orders"]),
        ("orders.eu", ["payments", "orders.*"]),
        ("__consumer_offsets", ["__consumer_offsets"]),
        ("app-store-changelog", ["*", "app-store-changelog"]),
        ("app-repartition", ["app-repartition"]),
        ("order-status", ["order-status"]),
        ("statuses", ["*"]),
        ("_schemas", ["*"]),
    ],
)
def test_what_the_list_has_is_allowed(topic: str, origin_topics: list[str]) -> None:
    assert allows(topic, *origin_topics)


@pytest.mark.parametrize(
    ("topic", "origin_topics"),
    [
        ("orders", []),
        ("orders", ["Orders"]),
        ("orders.eu", ["orders"]),
        ("my.orders", ["orders*"]),
        ("__consumer_offsets", ["*", "__*"]),
        ("app-store-changelog", ["*", "*-changelog"]),
        ("app-repartition", ["app-*"]),
        ("order-status", ["*", "order-statu?"]),
    ],
)
def test_what_the_list_has_not_or_only_as_a_glob_where_a_name_is_needed_is_not(
    topic: str, origin_topics: list[str]
) -> None:
    assert not allows(topic, *origin_topics)


@pytest.mark.parametrize("topic", ["retry", "dlq", *sorted(OWN)])
def test_own_topics_are_never_origins_even_when_named(topic: str) -> None:
    assert not allows(topic, "*", topic)


def test_the_detail_names_the_setting() -> None:
    verdict = Policy(PolicyConfig(origin_topics=("a",))).decide(Request(1, "b"), timestamp_ms=0, arrived_ms=0)
    assert verdict == Rejection(
        Reason.ORIGIN_NOT_ALLOWED, "origin b is not allowed: add it to ORIGIN_TOPICS if it should be"
    )
