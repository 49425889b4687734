"""Checks across settings: contradictions between them, and choices worth a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple, cast

from sidecar.contract.signature import tokens_of
from sidecar.settings import client
from sidecar.settings.kinds import is_topic_name, show_duration
from sidecar.settings.table import Settings

_IBM_DELAYS = ("FIRST_DELAY_MS", "SECOND_DELAY_MS", "THIRD_DELAY_MS")
_LOGIN = (
    ("SECURITY_PROTOCOL", "security_protocol", ("security.protocol",)),
    ("SASL_MECHANISM", "sasl_mechanism", ("sasl.mechanism", "sasl.mechanisms")),
    ("JAAS_USERNAME", "jaas_username", ("sasl.username",)),
    ("JAAS_PASSWORD", "jaas_password", ("sasl.password",)),
)


class Contradiction(NamedTuple):
    """Settings that cannot be used together."""

    names: tuple[str, ...]
    line: str
    """The settings, their values, what is allowed."""


def contradictions(settings: Settings) -> Iterator[Contradiction]:
    """Yield every contradiction, in the order of the documentation."""
    for check in _CHECKS:
        yield from check(settings)


def _topics_differ(settings: Settings) -> Iterator[Contradiction]:
    topics = (
        ("INPUT_TOPIC", settings.input_topic, ("INPUT_TOPIC",)),
        ("DLQ_TOPIC", settings.dlq_topic, ("DLQ_TOPIC",)),
        ("the changelog topic", settings.changelog_topic, ("STREAMS_APP_ID", "STORE_NAME")),
        ("the status topic", settings.status_topic, ("STREAMS_APP_ID",)),
    )
    own = {settings.input_topic, settings.changelog_topic, settings.status_topic}
    for policy in settings.origin_policies + settings.policies:
        if policy.given.get("DLQ_TOPIC") in own:
            line = (
                f"dlq_topic of policy {policy.origins}: {policy.given['DLQ_TOPIC']!r} is a topic of the sidecar "
                "itself: it must be another topic"
            )
            yield Contradiction(("POLICIES", "ORIGIN_POLICIES"), line)
    for index, (first, topic, names) in enumerate(topics):
        for second, other, other_names in topics[index + 1 :]:
            if topic == other:
                line = f"{first} and {second}: both are {topic!r}: they must be two different topics"
                yield Contradiction(names + other_names, line)


def _app_id_makes_topics(settings: Settings) -> Iterator[Contradiction]:
    for topic in (settings.changelog_topic, settings.status_topic):
        if not is_topic_name(topic):
            names = ("STREAMS_APP_ID", "STORE_NAME")
            yield Contradiction(
                names,
                f"STREAMS_APP_ID and STORE_NAME: {settings.streams_app_id!r} and {settings.store_name!r} make an "
                f"internal topic's name of {len(topic)} characters: it must have 249 at most",
            )
            return


def _delays_within_the_longest(settings: Settings) -> Iterator[Contradiction]:
    longest = show_duration(settings.max_delay_ms)

    def line(name: str, delay_ms: int) -> str:
        default = "" if name in settings.origins else " (the default)"
        return f"{name}: {show_duration(delay_ms)}{default} is above MAX_DELAY {longest}: no delay may be longer"

    name = "DELAYS" if settings.backoff is None else "BACKOFF"
    delay_ms = max(settings.effective_delays_ms)
    if delay_ms > settings.max_delay_ms:
        yield Contradiction((name, "MAX_DELAY"), line(name, delay_ms))
    elif delay_ms * (1 + settings.jitter) > settings.max_delay_ms:
        text = f"JITTER: {settings.jitter:g} of {show_duration(delay_ms)} ({name}) exceeds MAX_DELAY {longest}"
        yield Contradiction(("JITTER", name, "MAX_DELAY"), f"{text}: no delay may be longer")
    if "ibm" in settings.profiles:
        for name, delay_ms in zip(_IBM_DELAYS, settings.ibm_delays_ms, strict=True):
            if delay_ms > settings.max_delay_ms:
                text = f"{line(name, delay_ms)}; PROFILES without ibm needs none"
                yield Contradiction((name, "MAX_DELAY", "PROFILES"), text)


def _delays_in_one_form(settings: Settings) -> Iterator[Contradiction]:
    if settings.backoff is not None and "DELAYS" in settings.origins:
        line = "DELAYS and BACKOFF: both are set: give the delays as one of them, a list or an expression"
        yield Contradiction(("DELAYS", "BACKOFF"), line)


def _named_policies_are_there(settings: Settings) -> Iterator[Contradiction]:
    """Check each name of a policy against POLICIES."""
    known = {policy.origins for policy in settings.policies}
    allowed = ", ".join(sorted(known)) or "none, POLICIES is empty"
    wanted = [("EXCEPTION_POLICIES", "EXCEPTION_POLICIES", settings.exception_policies)]
    for source, policies in (("POLICIES", settings.policies), ("ORIGIN_POLICIES", settings.origin_policies)):
        for policy in policies:
            pairs = cast("tuple[tuple[str, str], ...]", policy.given.get("EXCEPTION_POLICIES", ()))
            wanted.append((source, f"{source}: {policy.origins}: EXCEPTION_POLICIES", pairs))
            if (name := policy.given.get("POLICY")) is not None:
                wanted.append((source, f"{source}: {policy.origins}", (("POLICY", str(name)),)))
    for source, where, pairs in wanted:
        for key, name in pairs:
            if name not in known:
                line = f"{where}: {key}: {name!r} is no policy: allowed are the names in POLICIES: {allowed}"
                yield Contradiction((source, "POLICIES"), line)


def _ibm_delays_have_their_profile(settings: Settings) -> Iterator[Contradiction]:
    if "ibm" in settings.profiles:
        return
    for name, delay_ms in zip(_IBM_DELAYS, settings.ibm_delays_ms, strict=True):
        if name in settings.origins:
            yield Contradiction(
                (name, "PROFILES"),
                f"{name}: {show_duration(delay_ms)} is set, but PROFILES is {','.join(settings.profiles)!r}: it must "
                f"name ibm, or {name} must not be set; DELAYS is for profile native",
            )


def _custom_headers_have_their_profile(settings: Settings) -> Iterator[Contradiction]:
    names = ("PROFILES", "CUSTOM_HEADERS")
    if "custom" in settings.profiles and settings.custom_headers is None:
        yield Contradiction(names, "PROFILES: names custom, but CUSTOM_HEADERS is not set: it must name the headers")
    if "custom" not in settings.profiles and settings.custom_headers is not None:
        profiles = ",".join(settings.profiles)
        yield Contradiction(names, f"CUSTOM_HEADERS: is set, but PROFILES is {profiles!r}: it must name custom")


def _exception_in_one_list(settings: Settings) -> Iterator[Contradiction]:
    lists = (
        ("DROPPABLE_EXCEPTION", settings.droppable_exception),
        ("RETRIABLE_EXCEPTION", settings.retriable_exception),
        ("FATAL_EXCEPTION", settings.fatal_exception),
    )
    for index, (name, globs) in enumerate(lists):
        for other_name, other_globs in lists[index + 1 :]:
            for glob in sorted(set(globs) & set(other_globs)):
                line = f"{name} and {other_name}: both name {glob!r}: it must be in one of them only"
                yield Contradiction((name, other_name), line)


def _own_topics_are_no_origins(settings: Settings) -> Iterator[Contradiction]:
    named = (
        ("ORIGIN_TOPICS", settings.origin_topics),
        ("ORIGIN_POLICIES", [policy.origins for policy in settings.origin_policies]),
    )
    for name, origins in named:
        for topic in sorted(settings.own_topics.intersection(origins)):
            yield Contradiction(
                (name, "INPUT_TOPIC", "DLQ_TOPIC", "STREAMS_APP_ID", "STORE_NAME"),
                f"{name}: {topic!r} is the input, the DLQ or an internal topic: it cannot be an origin",
            )


def _origin_policies_agree(settings: Settings) -> Iterator[Contradiction]:
    """Check the general settings as each policy changes them; a contradiction among themselves is reported once."""
    known = {None, *(policy.origins for policy in settings.policies)}
    for source, policies in (("POLICIES", settings.policies), ("ORIGIN_POLICIES", settings.origin_policies)):
        for policy in policies:
            if policy.given.get("POLICY") not in known:
                continue  # _named_policies_are_there says so
            for check in _POLICY_CHECKS:
                for names, line in check(settings.of(policy)):
                    if not policy.given.keys().isdisjoint(names):
                        yield Contradiction((*names, source), f"{source}: {policy.origins}: {line}")


def _login_is_complete(settings: Settings) -> Iterator[Contradiction]:
    if not settings.jaas_enabled:
        return
    properties = settings.client_properties
    for name, _, keys in _LOGIN[2:]:
        if not properties.get(keys[0]):
            yield Contradiction((name, "JAAS_ENABLED"), f"{name}: is not set, but JAAS_ENABLED is true: it must be set")
    protocol = properties.get("security.protocol", "")
    if protocol.upper() not in ("SASL_SSL", "SASL_PLAINTEXT"):
        shown = repr(protocol) if protocol else "not set"
        yield Contradiction(
            ("SECURITY_PROTOCOL", "JAAS_ENABLED"),
            f"SECURITY_PROTOCOL: is {shown}, but JAAS_ENABLED is true: it must be SASL_SSL or SASL_PLAINTEXT",
        )


def _login_in_one_word(settings: Settings) -> Iterator[Contradiction]:
    for name, attribute, properties in _LOGIN if settings.jaas_enabled else _LOGIN[:2]:
        value = getattr(settings, attribute)
        for key in properties:
            other = settings.client.get(key)
            secret = client.is_secret(key)
            # librdkafka takes the words of protocols and mechanisms in any capitals.
            if value is None or other is None or value == other or (not secret and value.upper() == other.upper()):
                continue
            shown = (client.MASK, client.MASK) if secret else (repr(value), repr(other))
            line = f"{name} and client property {key}: {shown[0]} and {shown[1]} differ: set one of them, or both alike"
            yield Contradiction((name,), line)


def _tokens_have_one_source(settings: Settings) -> Iterator[Contradiction]:
    """Check that a login with OAUTHBEARER has tokens, from one source, and that only such a login has one."""
    properties = settings.client_properties
    mechanism = properties.get("sasl.mechanisms", properties.get("sasl.mechanism", ""))
    oidc = properties.get("sasl.oauthbearer.method", "").lower() == "oidc"
    unsecured = properties.get("enable.sasl.oauthbearer.unsecure.jwt", "").lower() == "true"
    names = ("OAUTH_CALLBACK", "SASL_MECHANISM", "SECURITY_PROTOCOL", "JAAS_ENABLED")
    if settings.oauth_callback is None:
        if mechanism.upper() == "OAUTHBEARER" and not (oidc or unsecured):
            line = "SASL_MECHANISM: is OAUTHBEARER, but nothing gives a token"
            yield Contradiction(
                names, f"{line}: set OAUTH_CALLBACK, or client property sasl.oauthbearer.method to oidc"
            )
        return
    line = f"OAUTH_CALLBACK: {settings.oauth_callback!r} is set, but"
    if mechanism.upper() != "OAUTHBEARER":
        shown = repr(mechanism) if mechanism else "not set"
        yield Contradiction(names, f"{line} SASL_MECHANISM is {shown}: it must be OAUTHBEARER")
    elif (protocol := properties.get("security.protocol", "")).upper() not in ("SASL_SSL", "SASL_PLAINTEXT"):
        shown = repr(protocol) if protocol else "not set"
        yield Contradiction(names, f"{line} SECURITY_PROTOCOL is {shown}: it must be SASL_SSL or SASL_PLAINTEXT")
    if oidc or unsecured:
        other = "sasl.oauthbearer.method" if oidc else "enable.sasl.oauthbearer.unsecure.jwt"
        yield Contradiction(names, f"{line} client property {other} gives tokens too: set one of them")


def _http_is_complete(settings: Settings) -> Iterator[Contradiction]:
    """Check that TLS has both of its files, and that the token that reads is another than the one that changes."""
    pair = (("HTTP_TLS_CERT", settings.http_tls_cert), ("HTTP_TLS_KEY", settings.http_tls_key))
    for (name, path), (other, other_path) in (pair, pair[::-1]):
        if path is not None and other_path is None:
            line = f"{name}: {str(path)!r} is set, but {other} is not: TLS needs both, or neither"
            yield Contradiction((name, other), line)
    if settings.api_read_token is None:
        return
    names = ("API_READ_TOKEN", "API_TOKEN")
    if settings.api_token is None:
        yield Contradiction(names, "API_READ_TOKEN: is set, but API_TOKEN is not: changes would need no token")
    elif set(tokens_of(settings.api_token)) & set(tokens_of(settings.api_read_token)):
        yield Contradiction(names, "API_READ_TOKEN: has a token of API_TOKEN: whoever may read only needs another one")


_Check = Callable[[Settings], Iterator[Contradiction]]
_POLICY_CHECKS: tuple[_Check, ...] = (
    _delays_in_one_form,
    _delays_within_the_longest,
    _ibm_delays_have_their_profile,
    _exception_in_one_list,
)
_CHECKS: tuple[_Check, ...] = (
    _topics_differ,
    _app_id_makes_topics,
    *_POLICY_CHECKS,
    _named_policies_are_there,
    _own_topics_are_no_origins,
    _custom_headers_have_their_profile,
    _origin_policies_agree,
    _login_is_complete,
    _login_in_one_word,
    _tokens_have_one_source,
    _http_is_complete,
)


def unused(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting that is set but has no effect beside the others."""
    if not settings.jaas_enabled:
        for name in ("JAAS_USERNAME", "JAAS_PASSWORD"):
            if name in settings.origins:
                yield f"{name}: is set, but JAAS_ENABLED is false: it is not used"
    if settings.notify_url is None:
        for name in ("NOTIFY_INTERVAL", "NOTIFY_TEMPLATE"):
            if name in settings.origins:
                yield f"{name}: is set, but NOTIFY_URL is not: it is not used"
    for policy in settings.origin_policies:
        if is_topic_name(policy.origins) and not any(
            fnmatchcase(policy.origins, glob) for glob in settings.origin_topics
        ):
            yield f"ORIGIN_POLICIES: {policy.origins!r} is not allowed by ORIGIN_TOPICS: it is not used"


def advice_for_run(settings: Settings) -> tuple[str, ...]:
    """Return a line for each choice that is allowed but that the operator of a running sidecar should know of."""
    advice = []
    if "*" in settings.origin_topics:
        advice.append("ORIGIN_TOPICS: '*': every sender to the retry topic can write to any topic; name the origins")
    if not settings.http_is_loopback and settings.api_token is None:
        advice.append(
            f"HTTP_HOST: {settings.http_host!r} is not loopback: calls that change something, or show messages or "
            "settings, answer 403 until API_TOKEN is set"
        )
    return tuple(advice)
