"""The options of Spark's Kafka source: the settings of the sidecar as properties of Kafka's Java client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from sidecar.errors import SettingsInvalid
from sidecar.settings import Settings

EARLIEST: Final = -2
_SAME: Final = frozenset(
    {"security.protocol", "sasl.mechanism", "ssl.endpoint.identification.algorithm", "client.dns.lookup"}
)
_OWN: Final = frozenset({"kafka.isolation.level", "kafka.bootstrap.servers", "subscribe", "assign", "startingOffsets"})
_LOGIN: Final = "org.apache.kafka.common.security.{module} required username={name} password={word};"


def source_options(settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the source, without its start offsets.

    Args:
        settings: The effective settings; their `client` properties are librdkafka's.
        given: The user's options of the source: `kafka.<property of the Java client>`, `maxOffsetsPerTrigger`, ...

    Raises:
        SettingsInvalid: A client certificate has no form for the Java client and the user gives none, or the user gives
            an option that the guarantees rest on.
    """
    problems = [f"--source {name}: cannot be set, the guarantees rest on it" for name in sorted(_OWN & given.keys())]
    if settings.oauth_callback is not None:
        problems.append(
            f"OAUTH_CALLBACK: {settings.oauth_callback!r} is for the embedded engine: Kafka's Java client, which reads "
            "for Spark, cannot call it. Use another login, or run the embedded engine"
        )
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": settings.input_topic,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    properties = settings.client_properties
    properties.setdefault("sasl.mechanism", properties.get("sasl.mechanisms", ""))
    for name, value in properties.items():
        if name in _SAME and value:
            options[f"kafka.{name}"] = value
    if "sasl.username" in properties:
        scram = properties["sasl.mechanism"].startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        name, word = json.dumps(properties["sasl.username"]), json.dumps(properties.get("sasl.password", ""))
        options["kafka.sasl.jaas.config"] = _LOGIN.format(module=module, name=name, word=word)
    if "ssl.ca.location" in properties:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = properties["ssl.ca.location"]
    keystore = {"ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.certificate.pem"}
    if keystore & properties.keys() and not any(name.startswith("kafka.ssl.keystore") for name in given):
        problems.append(
            "a client certificate is set, and the Java client needs it in another form: give the Kafka source its own "
            "with --source kafka.ssl.keystore.type=PEM --source kafka.ssl.keystore.location=<key and certificate>"
        )
    if problems:
        raise SettingsInvalid(problems)
    return {**options, **given}


def starting_offsets(topic: str, offsets: Mapping[int, int]) -> str:
    """Return the start offsets by partition, as JSON; EARLIEST is an offset too."""
    return json.dumps({topic: {str(partition): offset for partition, offset in sorted(offsets.items())}})
