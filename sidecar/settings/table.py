"""The table of all settings: a frozen dataclass whose annotations say how each is named, read and explained."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import platformdirs

from sidecar.contract.dialects.custom import CustomHeaders
from sidecar.contract.dialects.registry import DEFAULT, DIALECTS, Profile
from sidecar.policy.backoff import Backoff
from sidecar.policy.config import PER_SECOND_MAX, PER_SECOND_MIN
from sidecar.settings import client, http_rows, kinds, origin_policies, policies
from sidecar.settings.custom_headers import CUSTOM_HEADERS
from sidecar.settings.kinds import DAY_MS, Kind, duration, whole
from sidecar.settings.origin_policies import OriginPolicy
from sidecar.settings.setting import Setting

_FOREVER_MS = 36_500 * DAY_MS
_HOUR_MS = 3_600_000
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  # an address to ask, not to listen on


POLICY = Setting(policies.NAME, "The policy of POLICIES that an origin has.", name="POLICY")
"""No setting by itself: ORIGIN_POLICIES can give it."""


def per_policy() -> tuple[Setting, ...]:
    """Return the settings that a policy of POLICIES can give."""
    return tuple(setting for setting in SETTINGS if setting.per_origin and not setting.not_by_name)


def per_origin() -> tuple[Setting, ...]:
    """Return the settings that ORIGIN_POLICIES can give."""
    return (POLICY, *(setting for setting in SETTINGS if setting.per_origin))


_ORDER = Setting(
    kinds.choice("none", "key"),
    "Whether messages of one origin and key are delivered in the order in which they came to the retry topic.",
    per_origin=True,
    not_by_name=True,
)
_ORIGIN_POLICIES = Kind(
    origin_policies.ALLOWED,
    lambda text: origin_policies.parse(text, per_origin(), kinds.TOPIC_GLOB),
    lambda given: origin_policies.show(given, per_origin()),
    is_mapping=True,
)
_POLICIES = Kind(
    policies.ALLOWED,
    lambda text: origin_policies.parse(text, per_policy(), policies.NAME),
    lambda given: origin_policies.show(given, per_policy()),
    is_mapping=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings. `load` makes and checks them; made directly, nothing is checked."""

    bootstrap_servers: Annotated[
        str, Setting(kinds.SERVERS, "Kafka bootstrap brokers: host:port, separated by commas.", common=True)
    ] = "localhost:9092"
    streams_app_id: Annotated[
        str,
        Setting(
            kinds.TOPIC,
            "Application id: prefix of the internal topics and of transactional ids.",
            aliases=("APP_NAME",),
            common=True,
        ),
    ] = "kafka-retry"
    given_group_id: Annotated[
        str | None, Setting(kinds.TEXT, "Consumer group.", name="GROUP_ID", default_text="connect-<STREAMS_APP_ID>")
    ] = None
    instance_id: Annotated[
        str | None,
        Setting(
            kinds.TOPIC,
            "Part of the transactional id; unique per running instance. Set it where it is stable, such as the pod "
            "name of a StatefulSet: group membership is then static, so a restart causes no rebalance.",
            default_text="an id kept in STATE_DIR",
        ),
    ] = None
    input_topic: Annotated[str, Setting(kinds.TOPIC, "The shared retry topic.", common=True)] = "retry"
    start_at: Annotated[
        str | int | None,
        Setting(
            kinds.START,
            "Where a new group begins to read a retry topic that is not empty: `latest` leaves everything that is on "
            "it unread; `earliest` reads everything, and delivers again what another program delivered before; an "
            "instant reads what was sent since. Without it such a start is refused. A group that has read before, and "
            "an empty topic, need no decision.",
            common=True,
        ),
    ] = None
    dlq_topic: Annotated[str, Setting(kinds.TOPIC, "The dead-letter topic (DLQ).", common=True, per_origin=True)] = (
        "dlq"
    )
    store_name: Annotated[str, Setting(kinds.TOPIC, "Middle part of the changelog topic's name.")] = "retry-queue"
    state_dir: Annotated[
        Path,
        Setting(
            kinds.FOLDER,
            "Folder of the local store, which is a cache of the changelog topic.",
            common=True,
            default_text="the platform's user state folder; /var/lib/retry-sidecar in the image",
        ),
    ] = field(default_factory=lambda: platformdirs.user_state_path("retry-sidecar"))

    punctuation_interval_ms: Annotated[
        int,
        Setting(
            duration(1, _HOUR_MS),
            "Longest time between two scans for due messages while messages are due. The more messages a scan fires, "
            "the sooner is the next: after 50 messages in half of the time, after 100 at once.",
        ),
    ] = 50
    commit_interval_ms: Annotated[
        int, Setting(duration(0, 60_000), "Shortest time between two transactions that ingest messages.")
    ] = 50
    commit_max_messages: Annotated[int, Setting(whole(1, 10_000), "Maximum number of messages in one transaction.")] = (
        10_000
    )

    delays_ms: Annotated[
        tuple[int, ...],
        Setting(
            kinds.durations(_FOREVER_MS, most=1_000),
            "Delay before retry 1, 2, 3, ...; used for a message that names no due time or delay.",
            name="DELAYS",
            common=True,
            per_origin=True,
        ),
    ] = (300_000, 300_000, 1_800_000, 1_800_000, 1_800_000, 3_600_000)
    backoff: Annotated[
        Backoff | None, Setting(policies.BACKOFF, "The delays as an expression, in place of DELAYS.", per_origin=True)
    ] = None
    jitter: Annotated[
        float,
        Setting(
            policies.share(),
            "Largest share of a delay of DELAYS or BACKOFF that is added to it. The share of a message is drawn from "
            "its partition and offset, so a repeated read gives the same due time.",
            per_origin=True,
        ),
    ] = 0.0
    max_age_ms: Annotated[
        int | None,
        Setting(
            duration(1, _FOREVER_MS),
            "Longest time from the first failure to a retry. A later retry is not made: DLQ `too-old`.",
            name="MAX_AGE",
            per_origin=True,
        ),
    ] = None
    max_attempts: Annotated[
        int | None,
        Setting(
            whole(1, 1_000),
            "Number of retries before a message goes to the DLQ. A limit in the message's headers can only lower it.",
            default_text="the number of delays",
            per_origin=True,
        ),
    ] = None
    max_delay_ms: Annotated[
        int,
        Setting(
            duration(1, _FOREVER_MS),
            "Longest accepted delay. A longer one goes to the DLQ: `delay-out-of-range`.",
            name="MAX_DELAY",
        ),
    ] = 365 * DAY_MS
    first_delay_ms: Annotated[
        int, Setting(duration(0, _FOREVER_MS), "Profile ibm: delay before the first retry.", per_origin=True)
    ] = 20_000
    second_delay_ms: Annotated[
        int, Setting(duration(0, _FOREVER_MS), "Profile ibm: delay before the second retry.", per_origin=True)
    ] = 40_000
    third_delay_ms: Annotated[
        int, Setting(duration(0, _FOREVER_MS), "Profile ibm: delay before the third retry.", per_origin=True)
    ] = 60_000
    droppable_exception: Annotated[
        tuple[str, ...],
        Setting(kinds.CLASS_GLOBS, "Names or globs of exceptions; their messages are dropped.", per_origin=True),
    ] = ()
    retriable_exception: Annotated[
        tuple[str, ...],
        Setting(
            kinds.CLASS_GLOBS,
            "Names or globs of exceptions; their messages are retried. Empty: every exception on no other list.",
            per_origin=True,
        ),
    ] = ()
    fatal_exception: Annotated[
        tuple[str, ...],
        Setting(
            kinds.CLASS_GLOBS, "Names or globs of exceptions; their messages go to the DLQ at once.", per_origin=True
        ),
    ] = ()
    exception_policies: Annotated[
        tuple[tuple[str, str], ...],
        Setting(
            policies.EXCEPTION_POLICIES,
            "Names or globs of exceptions, each with the policy of POLICIES that its messages have.",
            per_origin=True,
        ),
    ] = ()
    max_per_second: Annotated[
        float | None,
        Setting(
            policies.decimal(PER_SECOND_MIN, PER_SECOND_MAX, "200"),
            "Most messages a second that are delivered to one origin. What exceeds it is held until its turn.",
            per_origin=True,
            not_by_name=True,
        ),
    ] = None
    order: Annotated[str, _ORDER] = "none"
    origin_topics: Annotated[
        tuple[str, ...],
        Setting(
            kinds.TOPIC_GLOBS,
            "Names or globs of the topics that messages may be fired to. The input, the DLQ and the internal topics "
            "are never allowed; `__*`, `*-changelog`, `*-repartition` and `*-status` only when named literally.",
        ),
    ] = ("*",)
    origin_policies: Annotated[
        tuple[OriginPolicy, ...],
        Setting(
            _ORIGIN_POLICIES,
            "Settings for single origins, by topic name or glob: see below.",
        ),
    ] = ()
    policies: Annotated[tuple[OriginPolicy, ...], Setting(_POLICIES, "Policies by name: see below.")] = ()
    origin_timeout_ms: Annotated[
        int,
        Setting(
            duration(1_000, _FOREVER_MS),
            "How long an origin may be unauthorised, vanished or unreachable before messages due for it go to the DLQ.",
            name="ORIGIN_TIMEOUT",
        ),
    ] = DAY_MS
    profiles: Annotated[
        tuple[str, ...], Setting(kinds.choices(*DIALECTS), "Accepted header dialects; the first one that matches wins.")
    ] = DEFAULT
    custom_headers: Annotated[
        CustomHeaders | None,
        Setting(
            CUSTOM_HEADERS,
            "Header names and units of a home-made retry topic, for profile custom: `origin` (required), `due` with "
            "`due_unit` (ms, s, iso), `delay` with `delay_unit` (ms, s), `attempt`, `max_attempts`, `exception`, `id`.",
        ),
    ] = None
    max_clock_skew_ms: Annotated[
        int,
        Setting(
            duration(100, DAY_MS),
            "Largest difference from the broker's clock. Beyond it nothing fires and the instance is not ready.",
            name="MAX_CLOCK_SKEW",
        ),
    ] = 60_000

    http_host: Annotated[str, http_rows.HOST] = "127.0.0.1"
    http_port: Annotated[int, http_rows.PORT] = 8080
    http_advertised_url: Annotated[str | None, http_rows.ADVERTISED_URL] = None
    http_tls_cert: Annotated[Path | None, http_rows.TLS_CERT] = None
    http_tls_key: Annotated[Path | None, http_rows.TLS_KEY] = None
    http_tls_ca: Annotated[Path | None, http_rows.TLS_CA] = None
    api_token: Annotated[str | None, http_rows.API_TOKEN] = field(default=None, repr=False)
    api_read: Annotated[str, http_rows.API_READ] = "token"
    api_read_token: Annotated[str | None, http_rows.API_READ_TOKEN] = field(default=None, repr=False)
    notify_url: Annotated[
        str | None,
        Setting(kinds.URL, "Webhook that dead letters are announced to: docs/how-to/notify.md.", secret=True),
    ] = field(default=None, repr=False)
    notify_interval_ms: Annotated[
        int,
        Setting(
            duration(1_000, _HOUR_MS),
            "Time over which dead letters are collected for one notification.",
            name="NOTIFY_INTERVAL",
        ),
    ] = 60_000
    notify_template: Annotated[
        Path | None,
        Setting(kinds.FILE, "JSON file with placeholders: what a notification says.", default_text="all fields"),
    ] = None
    enable_health: Annotated[bool, Setting(kinds.SWITCH, "Serve the health endpoints.")] = True

    create_topics: Annotated[
        bool, Setting(kinds.SWITCH, "Create the input topic and the DLQ when they are missing.")
    ] = False
    replication_factor: Annotated[
        int | None,
        Setting(
            whole(1, 32_767),
            "Replication factor of the topics that the sidecar creates.",
            default_text="the broker's default",
        ),
    ] = None
    startup_timeout_ms: Annotated[
        int, Setting(duration(1, DAY_MS), "How long to wait for the brokers at startup.", name="STARTUP_TIMEOUT")
    ] = 60_000
    shutdown_timeout_ms: Annotated[
        int,
        Setting(
            duration(1, _HOUR_MS),
            "How long to wait at shutdown for the open transaction to finish.",
            name="SHUTDOWN_TIMEOUT",
        ),
    ] = 20_000
    log_level: Annotated[
        str, Setting(kinds.LEVEL, "Lowest log level that is logged.", aliases=("LOG_LEVEL_IBM",), common=True)
    ] = "info"
    log_format: Annotated[str, Setting(kinds.choice("console", "json"), "Format of the log lines on stderr.")] = (
        "console"
    )
    log_level_apache: Annotated[
        str, Setting(kinds.LEVEL, "Lowest log level of the Kafka client library that is logged.")
    ] = "info"

    security_protocol: Annotated[
        str | None,
        Setting(
            kinds.choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "IBM's name for CLIENT_SECURITY_PROTOCOL."
        ),
    ] = None
    sasl_mechanism: Annotated[
        str | None,
        Setting(
            kinds.choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
            "IBM's name for CLIENT_SASL_MECHANISM.",
            default_text="PLAIN when JAAS_ENABLED",
        ),
    ] = None
    jaas_enabled: Annotated[
        bool, Setting(kinds.SWITCH, "Log in to the brokers with JAAS_USERNAME and JAAS_PASSWORD.")
    ] = False
    jaas_username: Annotated[str | None, Setting(kinds.TEXT, "User of the SASL login.")] = None
    jaas_password: Annotated[str | None, Setting(kinds.TEXT, "Password of the SASL login.", secret=True)] = field(
        default=None, repr=False
    )

    oauth_callback: Annotated[
        str | None,
        Setting(
            kinds.FUNCTION,
            "Python function that gives the tokens of a login with SASL OAUTHBEARER. It is called with "
            "`sasl.oauthbearer.config` and returns (token, expiry in epoch seconds). `sidecar.kafka.msk_iam:token` is "
            "for Amazon MSK with IAM.",
        ),
    ] = None

    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka properties as given; `client_properties` is what clients take."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Setting's name, or `client.<property>` -> the source of its value; defaults are left out."""
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """One line each: what was accepted but has no effect or looks mistyped."""

    def of(self, policy: OriginPolicy) -> Settings:
        """Return the settings as they are for the origins of one policy, or for those who choose it by its name.

        Raises:
            KeyError: It names a policy that is not there.
        """
        layers = [policy]
        if (name := policy.given.get(POLICY.name)) is not None:
            layers.insert(0, {each.origins: each for each in self.policies}[str(name)])
        given: dict[str, object] = {}
        origins = dict(self.origins)
        for layer in layers:
            if not layer.given.keys().isdisjoint(("DELAYS", "BACKOFF")):
                given["BACKOFF"] = None
                origins.pop("DELAYS", None)
            given |= layer.given
            origins |= dict.fromkeys(layer.given, f"policy {layer.origins}")
        given.pop(POLICY.name, None)
        own = {BY_NAME[each].attribute: value for each, value in given.items()}
        changes: dict[str, Any] = own | {"origin_policies": (), "policies": (), "origins": origins}
        return dataclasses.replace(self, **changes)

    @property
    def effective_delays_ms(self) -> tuple[int, ...]:
        """The delays by attempt: those of BACKOFF where it is set."""
        return self.delays_ms if self.backoff is None else self.backoff.delays_ms

    @property
    def dialects(self) -> tuple[Profile, ...]:
        """PROFILES, with the header names of profile custom."""
        return tuple(self.custom_headers or each if each == "custom" else each for each in self.profiles)

    @property
    def group_id(self) -> str:
        """The consumer group; Kafka Connect's naming unless set, so that lag tools find it."""
        return self.given_group_id or f"connect-{self.streams_app_id}"

    @property
    def changelog_topic(self) -> str:
        return f"{self.streams_app_id}-{self.store_name}-changelog"

    @property
    def status_topic(self) -> str:
        return f"{self.streams_app_id}-status"

    @property
    def discards_topic(self) -> str:
        """Which dead letters are discarded; created with the first one."""
        return f"{self.streams_app_id}-discards"

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that are never an origin, whatever ORIGIN_TOPICS says."""
        internal = {self.changelog_topic, self.status_topic, self.discards_topic}
        return frozenset({self.input_topic, *self.dlq_topics, *internal})

    @property
    def dlq_topics(self) -> tuple[str, ...]:
        """Every DLQ, DLQ_TOPIC first, then those of policies in the order of their names."""
        own = origin_policies.values_of("DLQ_TOPIC", self.origin_policies + self.policies)
        return (self.dlq_topic, *sorted(own - {self.dlq_topic}))

    @property
    def transactional_id_prefix(self) -> str:
        """The transactional id up to the instance id."""
        return f"{self.streams_app_id}-"

    @property
    def ibm_delays_ms(self) -> tuple[int, int, int]:
        """The delays of profile ibm."""
        return self.first_delay_ms, self.second_delay_ms, self.third_delay_ms

    @property
    def http_is_loopback(self) -> bool:
        """Whether only this machine can reach the HTTP server."""
        try:
            return ipaddress.ip_address(self.http_host).is_loopback
        except ValueError:
            return self.http_host == "localhost"

    @property
    def http_url(self) -> str:
        """The URL of the HTTP server for clients on this machine; with TLS the one that its certificate is for."""
        if self.http_tls_cert is not None and self.http_advertised_url is not None:
            return self.http_advertised_url
        host = _ANYWHERE.get(self.http_host, self.http_host)
        return f"{self.http_scheme}://{f'[{host}]' if ':' in host else host}:{self.http_port}"

    @property
    def http_scheme(self) -> str:
        """`https` when the HTTP server has a certificate, else `http`."""
        return "http" if self.http_tls_cert is None else "https"

    @property
    def client_properties(self) -> dict[str, str]:
        """librdkafka properties for every client: the brokers, the login in IBM's words, then CLIENT_*."""
        login = {"security.protocol": self.security_protocol, "sasl.mechanism": self.sasl_mechanism}
        if self.jaas_enabled:
            login["sasl.mechanism"] = self.sasl_mechanism or "PLAIN"
            login["sasl.username"] = self.jaas_username
            login["sasl.password"] = self.jaas_password
        if "sasl.mechanisms" in self.client:
            del login["sasl.mechanism"]
        given = {name: value for name, value in login.items() if value is not None}
        return {"bootstrap.servers": self.bootstrap_servers, **given, **self.client}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values that are set, for the log to mask."""
        own = [getattr(self, setting.attribute) for setting in SETTINGS if setting.secret]
        parts = [*client.log_secrets(self.client), *client.url_secrets(self.notify_url or "")]
        return tuple(dict.fromkeys(value for value in [*own, *parts] if value))


def _table() -> tuple[Setting, ...]:
    found = []
    for attribute, hint in get_type_hints(Settings, include_extras=True).items():
        for setting in getattr(hint, "__metadata__", ()):
            name = setting.name or attribute.upper()
            found.append(dataclasses.replace(setting, attribute=attribute, name=name))
    return tuple(found)


SETTINGS = _table()
"""Every setting but CLIENT_*, in the order of the documentation."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_ALIAS = {alias: setting for setting in SETTINGS for alias in setting.aliases}
BY_FILE = {setting.file_name: setting for setting in SETTINGS if setting.secret}
"""The settings that files can contain, by the names that give the files."""
