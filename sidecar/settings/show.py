"""Settings for people: the effective ones with where each came from, and the reference page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sidecar.settings import client
from sidecar.settings.table import SETTINGS, WITHOUT_MEANING, Setting, Settings, default_text

_PAGE = """\
# Settings

Order: command line > environment > `--config file.yaml` > default. `retry-sidecar run --show-settings` prints the
effective ones and where each came from.

Every setting has three names: `HTTP_PORT` is `KAFKA_RETRY_HTTP_PORT` in the environment, `http_port` in YAML and
`--http-port` on the command line. A true-or-false setting is a pair of flags there: `--create-topics`,
`--no-create-topics`. Durations are `250ms`, `20s`, `5m`, `1h`, `7d` or a whole number of milliseconds; lists are
separated by commas, in YAML they may be lists.

An unknown YAML key, an impossible value and settings that contradict each other stop the start with exit status 2, one
line for each. So does an empty value on the command line or in YAML, where `[]` is a list without items. In the
environment an empty variable counts as not set, whatever it sets, and the start says so in a line for each. An unknown
name in the environment is warned of.

| name | default | what it must be | meaning |
|---|---|---|---|
{rows}

## Policies of single origins

`ORIGIN_POLICIES` gives some origins settings of their own, in YAML:

```yaml
delays: 5m,5m,30m
origin_policies:
  payments:
    delays: [1s, 10s, 1m]
    fatal_exception: [com.acme.CardExpired]
  mail-*:
    delays: [1h, 6h, 1d, 1d]
    max_attempts: 10
```

In the environment and on the command line it is the same on one line, as YAML or JSON:
`KAFKA_RETRY_ORIGIN_POLICIES='{{"payments": {{"delays": "1s,10s,1m"}}}}'`. The source that comes first gives all of
them; they are not put together from several.

An origin can have of its own: {per_origin}.

- What its policy does not give is as for all origins. A list that it gives takes the general one's place, `[]` too.
- With `DELAYS` of its own and no `MAX_ATTEMPTS`, neither its own nor a general one, its limit is the number of its
  delays.
- One policy counts for an origin, never two together: that of its own name, else the longest glob that matches (of
  equally long ones the first in the alphabet; their order in the file says nothing).
- A policy decides when a message is taken in. What is pending keeps its due time and its limit.

## Properties of the Kafka clients

Any librdkafka property can be passed to every Kafka client. `security.protocol` for example: in the environment
`KAFKA_RETRY_CLIENT_SECURITY_PROTOCOL=SASL_SSL`, in YAML `client: {{security.protocol: SASL_SSL}}`, on the command line
`--client security.protocol=SASL_SSL`, as often as needed. These cannot be set:

| property | why |
|---|---|
{refused}

## Names of IBM's kafka-retry

Its image's other variables keep working: {aliases}. These are accepted, with a warning, and have no meaning here:

| name | why |
|---|---|
{without_meaning}
"""


class Row(NamedTuple):
    """One effective setting, fit to be shown: secrets are masked."""

    name: str
    value: str
    origin: str


def rows(settings: Settings) -> Iterator[Row]:
    """Yield all effective settings and librdkafka properties, with where each came from."""
    for setting in SETTINGS:
        yield Row(setting.name, _effective(setting, settings), settings.origins.get(setting.name, "default"))
    for name, value in sorted(settings.client.items()):
        shown = client.MASK if client.is_secret(name) else value
        yield Row(f"client.{name}", shown, settings.origins.get(f"client.{name}", "default"))


def _effective(setting: Setting, settings: Settings) -> str:
    if setting.name == "GROUP_ID":
        return settings.group_id
    value = getattr(settings, setting.attribute)
    if value is None and setting.default_text:
        return f"({setting.default_text})"
    return setting.show(value)


def reference_page() -> str:
    """Return docs/reference/settings.md."""
    return _PAGE.format(
        per_origin=", ".join(f"`{setting.name}`" for setting in SETTINGS if setting.per_origin),
        rows="\n".join(_reference_row(setting) for setting in SETTINGS),
        refused="\n".join(f"| `{name}` | {why} |" for name, why in client.REFUSED.items()),
        aliases=", ".join(f"`{alias}` (= {setting.name})" for setting in SETTINGS for alias in setting.aliases),
        without_meaning="\n".join(f"| {name} | {why} |" for name, why in WITHOUT_MEANING.items()),
    )


def _reference_row(setting: Setting) -> str:
    default = default_text(setting).replace("<", "&lt;").replace(">", "&gt;").replace("*", r"\*")
    return f"| {setting.name} | {default} | {setting.kind.allowed} | {setting.help} |"
