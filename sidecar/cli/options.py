"""The settings as options of a command: every setting is a flag, and help shows those that the command uses."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from sidecar.cli.terminal import say
from sidecar.settings import GROUPS, SETTINGS, Settings, load
from sidecar.settings.show import default_text
from sidecar.settings.sources import CONFIG_ENV

P = ParamSpec("P")
R = TypeVar("R")

_PREFIX = "setting_"
_CONFIG = f"{_PREFIX}config"
_CLIENT = f"{_PREFIX}client"
_REREAD = f"{__name__}.reread"
_BY_ATTRIBUTE = {setting.attribute: setting for setting in SETTINGS}


KAFKA: Final = (*GROUPS["Kafka"], "client")
"""What a command that talks to Kafka uses."""
INSTANCES: Final = (*KAFKA, "input_topic", "streams_app_id", "given_group_id", "api_token", "http_tls_ca")
"""What a command uses that finds the instances of a group and asks them."""
TOPICS: Final = ("input_topic", "dlq_topic", "streams_app_id", "store_name", "origin_policies", "policies")
"""What the topics are named by: a policy can have a DLQ of its own."""
DEAD_LETTERS: Final = (*KAFKA, *TOPICS, "given_group_id", *GROUPS["Headers"][:2])
"""What a command uses that reads the DLQ."""
POLICY: Final = (*TOPICS, "origin_topics", *GROUPS["Retries"], *GROUPS["Headers"])
"""What decides about a message."""
ALL: Final = (*KAFKA, *(attribute for group in GROUPS.values() for attribute in group))

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


class SettingOption(click.Option):
    """A setting as an option, shown by help in its group."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class SettingsCommand(click.Command):
    """A command with settings: its help shows its own options, then the settings that it uses, by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group of options that has something to show."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                title = parameter.group if isinstance(parameter, SettingOption) else "Options"
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def settings_options(
    uses: Collection[str] = ALL, *, defaults: Mapping[str, str] | None = None, warn: bool = True
) -> Callable[[Callable[Concatenate[Settings, P], R]], Callable[P, R]]:
    """Give a command all settings as flags, and hand it the effective Settings as its first argument.

    Args:
        uses: The attributes of the settings that the command uses, which its help shows; `client` among them.
        defaults: The command's own defaults as text, by the setting's name: `{"CREATE_TOPICS": "true"}`.
        warn: Print the warnings on stderr; a command that logs does so itself.

    Raises:
        SettingsInvalid: When the command is called with settings that cannot be used; the group prints it.
    """

    def decorate(function: Callable[Concatenate[Settings, P], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def command(*args: P.args, **kwargs: P.kwargs) -> R:
            given = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith(_PREFIX)}
            settings = _load(given, defaults or {})
            click.get_current_context().meta[_REREAD] = functools.partial(_load, given, defaults or {})
            if warn:
                for warning in settings.warnings:
                    say(f"warning: {warning}", err=True)
            return function(settings, *args, **kwargs)

        for option in reversed(list(_options(uses))):
            option(command)
        return command

    return decorate


def reread() -> Callable[[], Settings]:
    """Return what reads the settings of the running command again, from the same sources; raises SettingsInvalid."""
    found: Callable[[], Settings] = click.get_current_context().meta[_REREAD]
    return found


def _load(given: Mapping[str, object], defaults: Mapping[str, str]) -> Settings:
    config, client = given[_CONFIG], given[_CLIENT]
    flags = {name.removeprefix(_PREFIX): value for name, value in given.items() if name not in (_CONFIG, _CLIENT)}
    return load(
        flags={name: _text(value) for name, value in flags.items() if value is not None},
        client=client if isinstance(client, tuple) else (),
        environ=os.environ,
        config=config if isinstance(config, Path) else None,
        defaults=defaults,
    )


def _text(value: object) -> str:
    """Return what a flag gave as the text that all sources give; click makes switches of the two-sided flags."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(uses: Collection[str]) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Yield the options of all settings, in the order of help."""
    yield click.option(
        "--config",
        _CONFIG,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Settings in a YAML file; without it, in the one that {CONFIG_ENV} names. "
        "A flag for a setting that this command does not use is accepted too.",
    )
    for title, attributes in GROUPS.items():
        for attribute in attributes:
            setting = _BY_ATTRIBUTE[attribute]
            default = default_text(setting)
            yield click.option(
                f"{setting.flag}/{setting.negative_flag}" if setting.kind.is_switch else setting.flag,
                f"{_PREFIX}{attribute}",
                cls=SettingOption,
                group=title,
                default=None,
                metavar=None if setting.kind.is_switch else "VALUE",
                help=setting.help if default in ("none", "empty") else f"{setting.help}  [default: {default}]",
                hidden=attribute not in uses,
            )
            if setting.secret:
                yield click.option(
                    f"{setting.flag}-file",
                    f"{_PREFIX}{attribute}_file",
                    cls=SettingOption,
                    group=title,
                    default=None,
                    metavar="FILE",
                    help=f"File that contains {setting.name}.",
                    hidden=attribute not in uses,
                )
        if title == "Kafka":
            yield click.option(
                "--client",
                _CLIENT,
                cls=SettingOption,
                group=title,
                multiple=True,
                metavar="KEY=VALUE",
                help="A librdkafka property for every Kafka client; repeatable.",
                hidden="client" not in uses,
            )
