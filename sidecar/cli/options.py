"""The settings as options of a command: every setting is a flag, the common ones are in its help."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click

from sidecar.cli.terminal import say
from sidecar.settings import SETTINGS, Setting, Settings, load

P = ParamSpec("P")
R = TypeVar("R")

_PREFIX = "setting_"
_CONFIG = f"{_PREFIX}config"
_CLIENT = f"{_PREFIX}client"
_REREAD = f"{__name__}.reread"


def settings_options(
    *, defaults: Mapping[str, str] | None = None, warn: bool = True
) -> Callable[[Callable[Concatenate[Settings, P], R]], Callable[P, R]]:
    """Give a command all settings as flags, and hand it the effective Settings as its first argument.

    Args:
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

        for option in reversed(_OPTIONS):
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


def _option(setting: Setting) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        f"{setting.flag}/{setting.negative_flag}" if setting.kind.is_switch else setting.flag,
        f"{_PREFIX}{setting.attribute}",
        default=None,
        metavar=None if setting.kind.is_switch else "VALUE",
        help=setting.help,
        hidden=not setting.common,
    )


def _file_option(setting: Setting) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        f"{setting.flag}-file",
        f"{_PREFIX}{setting.attribute}_file",
        default=None,
        metavar="FILE",
        help=f"File that contains {setting.name}.",
        hidden=True,
    )


_OPTIONS: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    click.option("--config", _CONFIG, type=click.Path(path_type=Path), metavar="FILE", help="Settings in a YAML file."),
    *(_option(setting) for setting in SETTINGS),
    *(_file_option(setting) for setting in SETTINGS if setting.secret),
    click.option(
        "--client",
        _CLIENT,
        multiple=True,
        metavar="KEY=VALUE",
        help="A librdkafka property for every Kafka client; repeatable. Every other setting is a flag too: "
        "`retry-sidecar run --show-settings` shows them all.",
    ),
)
