"""Settings for people: the effective ones with where each came from, and the reference page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from sidecar.settings import client
from sidecar.settings.setting import WITHOUT_MEANING, Setting
from sidecar.settings.table import BY_FILE, SETTINGS, Settings, per_origin, per_policy

_PAGE = """\
# Settings

Precedence: command line > environment > YAML file > default. `retry-sidecar run --show-settings` prints the effective
values and where each comes from.

`--config file.yaml` names the YAML file, and without it the environment variable `KAFKA_RETRY_CONFIG` does, for every
command. The image sets the variable to `/etc/retry-sidecar/config/config.yaml`, and so do the charts: commands that you
run in a container have the sidecar's settings.

Every setting has three names: `HTTP_PORT` is `KAFKA_RETRY_HTTP_PORT` in the environment, `http_port` in YAML and
`--http-port` on the command line. On the command line, a boolean setting is a pair of flags: `--create-topics`,
`--no-create-topics`. A duration is `250ms`, `20s`, `5m`, `1h`, `7d` or a whole number of milliseconds. A list is
separated by commas, or a list in YAML.

An unknown YAML key, an invalid value, or two settings that contradict each other stop the start with exit status 2 and
one line for each mistake. An empty value on the command line or in YAML is invalid too; write `[]` for an empty list.
In the environment an empty variable counts as not set, and an unknown name is ignored; the start logs a warning for
each.

| name | default | allowed | meaning |
|---|---|---|---|
{rows}

## Secrets in files

A secret can be in a file, as Kubernetes and Docker mount it. Name the file in place of the value:
{file_names}, in YAML `api_token_file`, on the command line `--api-token-file`.
For a secret property of the Kafka clients, append `_FILE` or `.file` to its name:
`KAFKA_RETRY_CLIENT_SASL_PASSWORD_FILE=/run/secrets/password`, in YAML
`client: {{sasl.password.file: /run/secrets/password}}`. Several tokens are in one file, one a line or separated by
commas. Every property counts as secret that is not known to be
harmless, such as `sasl.oauthbearer.config`: no command, log line or request shows its value. Names of users and paths
are harmless, and so are times, sizes and switches.

The file must be text in UTF-8 of at most 64 KiB. One line end at its end is removed. The start is refused if the file
cannot be read, is empty or too large, or if one source gives both a value and its file. Between sources, the usual
precedence applies. The sidecar reads the files when it starts: restart it after you change one.

## Policies of single origins

`ORIGIN_POLICIES` overrides settings for single origins. In YAML:

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

In the environment and on the command line, write it on one line, as YAML or JSON:
`KAFKA_RETRY_ORIGIN_POLICIES='{{"payments": {{"delays": "1s,10s,1m"}}}}'`. The source with the highest precedence gives
all policies; policies from several sources are not merged.

A policy can set: {per_origin}.

- `POLICY` names a policy of `POLICIES`, whose settings apply where the entry has none of its own.

- A setting that the policy does not name keeps its general value. A list in the policy replaces the general list; `[]`
  replaces it with an empty one.
- If the policy sets `DELAYS` and `MAX_ATTEMPTS` is set nowhere, the limit is the number of the policy's delays.
- At most one policy applies to an origin: the one with its exact name, else the longest matching glob. Between globs of
  equal length the first in alphabetical order applies; their order in the file does not matter.
- The policy applies when a message is ingested. A message that is already pending keeps its due time and its limit.

A running sidecar reads its policies again on SIGHUP. [`POST /policies/reload`](http.md) with the token makes all
instances do so; each reads its own. It takes over the settings of this and the next two sections, `ORIGIN_TOPICS` and
`MAX_DELAY`. A mistake in any setting changes nothing, and the log or the answer names it. Other settings that changed
keep their values until a restart. The Spark engine reads its policies when the query starts.

## Policies by name

`POLICIES` gives policies a name. A message meets, in this order: the policy that its header `retry-policy` names, else
that of its origin, else the general settings. Then the exception rules of that policy, `EXCEPTION_POLICIES`, can choose
another one; its own exception rules are not asked.

```yaml
policies:
  slow:
    backoff: {{first: 1m, factor: 2, max: 6h, attempts: 12}}
    jitter: 0.2
    max_age: 2d
  card:
    delays: [1s, 10s]
exception_policies:
  com.acme.Throttled*: slow
origin_policies:
  payments:
    policy: card
    max_attempts: 5
```

- A policy can set what an entry of `ORIGIN_POLICIES` can, except `POLICY`{not_by_name}.
- `BACKOFF` is a list of delays as an expression: each is `factor` times the one before, none above `max`, `attempts` in
  all. A policy gives `DELAYS` or `BACKOFF`, not both; what it gives replaces either of the general settings.
- `JITTER` adds up to this share to a delay of `DELAYS`, `BACKOFF` or profile `ibm`, never to a time that the message
  itself names. The share of a message depends on its partition and offset alone.
- `MAX_AGE` counts from the first failure. The sidecar notes it in the header `retry-first-ms`, which travels with the
  message; a message without it has failed for the first time.
- Exception rules are names or globs: the exact name wins, else the longest glob that matches.
- A header `retry-policy` with an unknown name is a dead letter: `bad-header`.

## Rates

`MAX_PER_SECOND` bounds what one origin gets, for all origins or in `ORIGIN_POLICIES`. After an outage it keeps a
backlog from flooding the service that has just come back. [Rates](../explanation/rates.md) says how exact it is and
what it costs.

## Order per key

With `ORDER=key`, for all origins or in `ORIGIN_POLICIES`, a message is not delivered before an earlier one of its
origin and key that still waits. [Order per key](../explanation/order.md) says what that costs and what it cannot
promise.

## Properties of the Kafka clients

You can pass any librdkafka property to all Kafka clients. For example `security.protocol`: in the environment
`KAFKA_RETRY_CLIENT_SECURITY_PROTOCOL=SASL_SSL`, in YAML `client: {{security.protocol: SASL_SSL}}`, on the command line
`--client security.protocol=SASL_SSL`, which you can repeat. These properties cannot be set:

| property | why |
|---|---|
{refused}

## Names of IBM's kafka-retry

The other variables of IBM's image keep working: {aliases}. These are accepted with a warning and have no effect:

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
        file_names=", ".join(f"`KAFKA_RETRY_{name}`" for name in BY_FILE),
        per_origin=", ".join(f"`{setting.name}`" for setting in per_origin()),
        not_by_name="".join(f", `{each.name}`" for each in per_origin()[1:] if each not in per_policy()),
        rows="\n".join(_reference_row(setting) for setting in SETTINGS),
        refused="\n".join(f"| `{name}` | {why} |" for name, why in client.REFUSED.items()),
        aliases=", ".join(f"`{alias}` (= {setting.name})" for setting in SETTINGS for alias in setting.aliases),
        without_meaning="\n".join(f"| {name} | {why} |" for name, why in WITHOUT_MEANING.items()),
    )


def _reference_row(setting: Setting) -> str:
    default = default_text(setting).replace("<", "&lt;").replace(">", "&gt;").replace("*", r"\*")
    return f"| {setting.name} | {default} | {setting.kind.allowed} | {setting.help} |"


def default_text(setting: Setting) -> str:
    """Return the default as the documentation shows it."""
    if setting.default_text:
        return setting.default_text
    default = next(item.default for item in dataclasses.fields(Settings) if item.name == setting.attribute)
    if default is None:
        return "none"
    return setting.show(default) or "empty"
