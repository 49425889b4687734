"""Converts the client library's errors into KafkaFailed, the only one that other packages see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from sidecar.errors import KafkaFailed

_AWAY: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
    }
)
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
OF_THE_PRODUCER: Final = frozenset(
    {
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTION_ABORTABLE,
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._STATE,
    }
)
"""Answers about a producer or its transaction, which come with a record or a batch and say nothing about it."""


def failed(error: KafkaError) -> KafkaFailed:
    """Return an error of the client library as KafkaFailed."""
    code = error.code()
    return KafkaFailed(
        error.str(),
        code=error.name(),
        away=code in _AWAY,
        denied=code in _DENIED,
        fatal=error.fatal() or code == KafkaError._FATAL,
    )


@contextmanager
def translated() -> Iterator[None]:
    """Convert the client library's exceptions to KafkaFailed."""
    try:
        yield
    except KafkaException as cause:
        raise failed(cause.args[0]) from cause
