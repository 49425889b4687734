"""Errors of the client library leave `sidecar.kafka` as the project's own."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from sidecar.errors import KafkaFailed
from sidecar.kafka.errors import failed, translated


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        (KafkaError._TRANSPORT, ("_TRANSPORT", True, False, False)),
        (KafkaError.NOT_COORDINATOR, ("NOT_COORDINATOR", True, False, False)),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ("TOPIC_AUTHORIZATION_FAILED", False, True, False)),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ("GROUP_AUTHORIZATION_FAILED", False, True, False)),
        (KafkaError._FATAL, ("_FATAL", False, False, True)),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ("UNKNOWN_TOPIC_OR_PART", False, False, False)),
    ],
)
def test_an_error_says_whether_waiting_a_right_or_another_client_helps(
    code: int, facts: tuple[str, bool, bool, bool]
) -> None:
    error = failed(KafkaError(code, "in the library's words"))
    assert (error.code, error.away, error.denied, error.fatal) == facts
    assert str(error) == "in the library's words"


def test_a_fatal_error_of_any_code_is_fatal() -> None:
    assert failed(KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", True)).fatal


def test_what_a_call_raises_is_translated_and_names_its_cause() -> None:
    raised = KafkaException(KafkaError(KafkaError._STATE, "not now"))
    with pytest.raises(KafkaFailed, match="not now") as caught, translated():
        raise raised
    assert caught.value.__cause__ is raised


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(BufferError), translated():
        raise BufferError
