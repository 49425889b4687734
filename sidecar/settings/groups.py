"""The settings as help shows them: in groups, and in each the most used first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.settings.table import SETTINGS

_NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "Kafka": (
        "bootstrap_servers",
        "security_protocol",
        "sasl_mechanism",
        "oauth_callback",
        "jaas_enabled",
        "jaas_username",
        "jaas_password",
    ),
    "Topics and group": (
        "input_topic",
        "dlq_topic",
        "streams_app_id",
        "origin_topics",
        "start_at",
        "given_group_id",
        "instance_id",
        "store_name",
        "create_topics",
        "replication_factor",
    ),
    "Retries": (
        "delays_ms",
        "max_attempts",
        "backoff",
        "jitter",
        "max_age_ms",
        "max_delay_ms",
        "max_per_second",
        "order",
        "fatal_exception",
        "retriable_exception",
        "droppable_exception",
        "exception_policies",
        "origin_policies",
        "policies",
        "origin_timeout_ms",
    ),
    "Headers": ("profiles", "custom_headers", "first_delay_ms", "second_delay_ms", "third_delay_ms"),
    "HTTP API": (
        "http_port",
        "http_host",
        "api_token",
        "api_read",
        "api_read_token",
        "http_advertised_url",
        "http_tls_cert",
        "http_tls_key",
        "http_tls_ca",
        "enable_health",
    ),
    "Process": (
        "state_dir",
        "startup_timeout_ms",
        "shutdown_timeout_ms",
        "max_clock_skew_ms",
        "punctuation_interval_ms",
        "commit_interval_ms",
        "commit_max_messages",
    ),
    "Notifications": ("notify_url", "notify_interval_ms", "notify_template"),
    "Log": ("log_level", "log_format", "log_level_apache"),
}
_grouped = {attribute for attributes in _NAMED.values() for attribute in attributes}

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    **_NAMED,
    "Other settings": tuple(each.attribute for each in SETTINGS if each.attribute not in _grouped),
}
"""Title of each group -> the attributes of its settings. Every setting is in one."""
