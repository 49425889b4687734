"""Properties passed through to librdkafka: which are refused, and which are secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

PREFIX = "CLIENT_"
MASK = "***"

_EXACTLY_ONCE = "exactly-once depends on it"
_PROPERTY = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")
_SECRET = re.compile(r"password|passphrase|secret|token|jaas\.config|key\.pem")
_PAIR = re.compile(r"""([\w.-]+)=["']?([^\s,;"']+)""")

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


_HARMLESS = """
    client.id client.rack client.dns.lookup client.software.name client.software.version security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.kerberos.service.name sasl.kerberos.principal
    sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.oauthbearer.method sasl.oauthbearer.client.id
    sasl.oauthbearer.scope enable.sasl.oauthbearer.unsecure.jwt sasl.oauthbearer.grant.type
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.metadata.authentication.type ssl.ca.location
    ssl.certificate.location ssl.key.location ssl.keystore.location ssl.crl.location ssl.ca.certificate.stores
    ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.endpoint.identification.algorithm
    enable.ssl.certificate.verification ssl.providers https.ca.location socket.timeout.ms socket.blocking.max.ms
    socket.send.buffer.bytes socket.receive.buffer.bytes socket.keepalive.enable socket.nagle.disable
    socket.max.fails socket.connection.setup.timeout.ms broker.address.ttl broker.address.family
    broker.version.fallback api.version.request api.version.request.timeout.ms api.version.fallback.ms
    connections.max.idle.ms reconnect.backoff.jitter.ms reconnect.backoff.ms reconnect.backoff.max.ms
    retry.backoff.ms retry.backoff.max.ms retries message.send.max.retries metadata.max.age.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.sparse topic.metadata.propagation.max.ms topic.blacklist metadata.recovery.strategy
    metadata.recovery.rebootstrap.trigger.ms message.max.bytes message.copy.max.bytes receive.message.max.bytes
    max.in.flight max.in.flight.requests.per.connection debug log_level log.queue log.thread.name
    log.connection.close enable.random.seed statistics.interval.ms internal.termination.signal enable.metrics.push
    session.timeout.ms heartbeat.interval.ms max.poll.interval.ms coordinator.query.interval.ms group.protocol.type
    group.remote.assignor auto.commit.interval.ms enable.auto.offset.store queued.min.messages
    queued.max.messages.kbytes fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes
    max.partition.fetch.bytes fetch.max.bytes fetch.min.bytes fetch.error.backoff.ms offset.store.method
    enable.partition.eof check.crcs enable.gapless.guarantee queue.buffering.max.messages queue.buffering.max.kbytes
    queue.buffering.max.ms linger.ms queue.buffering.backpressure.threshold compression.codec compression.type
    batch.num.messages batch.size delivery.report.only.error sticky.partitioning.linger.ms transaction.timeout.ms
    request.timeout.ms message.timeout.ms delivery.timeout.ms queuing.strategy partitioner compression.level
"""

HARMLESS = frozenset(_HARMLESS.split()) | frozenset(REFUSED)
"""The properties that are shown: what is not known to be harmless may be a secret, or have one in it."""

_IN_LOG_CHARACTERS = 8
"""A shorter value, such as `true`, is also in lines that have nothing to do with it."""


def is_secret(name: str) -> bool:
    """Tell whether the value of a property is never shown."""
    return name.lower() not in HARMLESS


def log_secrets(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield what the log masks: the values that are not shown, and the secrets in those that are lists."""
    for name, value in properties.items():
        if is_secret(name):
            if len(value) >= _IN_LOG_CHARACTERS or _SECRET.search(name.lower()):
                yield value
            for key, text in _PAIR.findall(value):
                if _SECRET.search(key.lower()):
                    yield text


def url_secrets(url: str) -> Iterator[str]:
    """Yield what the log masks of a secret URL besides itself: libraries write it in parts, and each in its own way."""
    place = urlsplit(url)
    written = f"{place.path}?{place.query}" if place.query else place.path
    for part in (written, unquote(written), place.password, place.username):
        if part is not None and len(part) >= _IN_LOG_CHARACTERS:
            yield part


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
