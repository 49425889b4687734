"""Sources in, checked settings out: command line, then environment, then YAML file, then defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from sidecar.errors import SettingsInvalid
from sidecar.settings.checks import contradictions, unused
from sidecar.settings.client import MASK
from sidecar.settings.kinds import NotAllowed
from sidecar.settings.setting import Setting
from sidecar.settings.sources import (
    CONFIG_ENV,
    Given,
    Source,
    config_of,
    from_environment,
    from_flags,
    from_yaml,
    not_allowed,
)
from sidecar.settings.table import BY_NAME, SETTINGS, Settings

_NOTHING: Mapping[str, str] = {}


def load(
    *,
    flags: Mapping[str, str] = _NOTHING,
    client: Sequence[str] = (),
    environ: Mapping[str, str] = _NOTHING,
    config: Path | None = None,
    defaults: Mapping[str, str] = _NOTHING,
) -> Settings:
    """Return the effective settings.

    Args:
        flags: Text given on the command line, by the setting's attribute.
        client: `key=value` of each `--client`.
        environ: The environment; only names that start with KAFKA_RETRY_ are read.
        config: The YAML file of the command line; without it, the one that the environment names.
        defaults: A command's own defaults as text, by the setting's name.

    Raises:
        SettingsInvalid: With one line for every mistake in any source.
    """
    sources = [from_flags(flags, client), from_environment(environ)]
    if config is not None:
        sources.append(from_yaml(config, "--config"))
    elif (named := config_of(environ)) is not None:
        sources.append(from_yaml(named, CONFIG_ENV))
    own = [Given(BY_NAME[name], text, "default of this command") for name, text in defaults.items()]
    sources.append(Source(given=own))

    problems = [line for source in sources for line in source.problems]
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    wrong = set[str]().union(*(source.unread for source in sources))
    for setting in SETTINGS:
        given = _first(setting, sources, problems)
        if given is None:
            continue
        try:
            # A secret is kept to the letter: blanks at its ends may be part of it.
            values[setting.attribute] = setting.kind.parse(given.text if setting.secret else given.text.strip())
            origins[setting.name] = given.origin
        except NotAllowed as mistakes:
            problems += [f"{setting.name}: {line} (from {given.origin})" for line in mistakes.lines]
            wrong.add(setting.name)
        except ValueError:
            problems.append(not_allowed(given))
            wrong.add(setting.name)

    properties: dict[str, str] = {}
    for source in reversed(sources):
        for name, (value, origin) in source.client.items():
            properties[name] = value
            origins[f"client.{name}"] = origin
    settings = Settings(**values, client=properties, origins=origins)  # type: ignore[arg-type]  # parsed by the table

    for contradiction in contradictions(settings):
        # A default that stands in for a wrong value contradicts nothing that the user wrote.
        if wrong.isdisjoint(contradiction.names) and contradiction.line not in problems:
            problems.append(contradiction.line)
    if problems:
        raise SettingsInvalid(problems)
    warnings = [line for source in sources for line in source.warnings]
    return dataclasses.replace(settings, warnings=(*warnings, *unused(settings)))


def _first(setting: Setting, sources: Sequence[Source], problems: list[str]) -> Given | None:
    """Return what the first source that has the setting gives; two names of it there must agree."""
    for source in sources:
        found = [given for given in source.given if given.setting.name == setting.name]
        if found:
            origins = " and ".join(given.origin for given in found)
            if len(found) > 1 and any(given.is_file for given in found):
                problems.append(
                    f"{setting.name} and {setting.file_name}: both are set (from {origins}): give the value or its file"
                )
            elif len({given.text.strip() for given in found}) > 1:
                values = " and ".join(MASK if setting.secret else repr(given.text) for given in found)
                problems.append(
                    f"{setting.name}: {values} differ (from {origins}): two names of one setting, "
                    "set one of them, or both alike"
                )
            return found[0]
    return None
