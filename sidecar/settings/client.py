"""Properties passed through to librdkafka: which are refused, and which are secret."""

from __future__ import annotations

import re

PREFIX = "CLIENT_"
MASK = "***"

_EXACTLY_ONCE = "exactly-once depends on it"
_PROPERTY = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")
_SECRET = re.compile(r"password|passphrase|secret|token|jaas\.config|key\.pem")

REFUSED = {
    "isolation.level": f"{_EXACTLY_ONCE}: always read_committed",
    "enable.auto.commit": f"{_EXACTLY_ONCE}: offsets are committed inside transactions only",
    "auto.commit.enable": f"{_EXACTLY_ONCE}: offsets are committed inside transactions only",
    "auto.offset.reset": f"{_EXACTLY_ONCE}: a lost offset is restored from the changelog, never guessed",
    "transactional.id": f"{_EXACTLY_ONCE}: set STREAMS_APP_ID and INSTANCE_ID, which it consists of",
    "acks": f"{_EXACTLY_ONCE}: always all",
    "request.required.acks": f"{_EXACTLY_ONCE}: always all",
    "enable.idempotence": f"{_EXACTLY_ONCE}: always true",
    "allow.auto.create.topics": "a mistyped origin must become a dead letter, not a new topic: always false",
    "partition.assignment.strategy": "all instances must use the same one: always cooperative-sticky",
    "group.protocol": "restore and hand-over depend on the classic protocol: always classic",
    "bootstrap.servers": "set BOOTSTRAP_SERVERS",
    "metadata.broker.list": "set BOOTSTRAP_SERVERS",
    "group.id": "set GROUP_ID",
    "group.instance.id": "set INSTANCE_ID",
}
"""Property, by every name that librdkafka knows it by -> why it cannot be set."""


def is_secret(name: str) -> bool:
    """Tell whether the value of a property must never be shown."""
    return _SECRET.search(name.lower()) is not None


def property_of(env_rest: str) -> str:
    """Return the property that the end of an environment name means: SECURITY_PROTOCOL is security.protocol."""
    return env_rest.lower().replace("_", ".")


def refusal(name: str) -> str | None:
    """Return what is wrong with the name of a property, or None when it may be passed on."""
    if name in REFUSED:
        return f"cannot be set: {REFUSED[name]}"
    if _PROPERTY.fullmatch(name) is None:
        return "is no librdkafka property: names look like security.protocol"
    return None
