"""Sources of settings: command line, environment, YAML file. Each becomes a list of Given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from sidecar.errors import printable
from sidecar.settings import client, kinds, nodes, secret_files
from sidecar.settings.setting import WITHOUT_MEANING, Setting
from sidecar.settings.table import BY_ALIAS, BY_FILE, BY_NAME, SETTINGS
from sidecar.settings.wording import closest, plain, quoted

ENV_PREFIX = "KAFKA_RETRY_"
CONFIG = "CONFIG"
"""Names the YAML file, after the prefix; no setting, since the file cannot name itself."""
CONFIG_ENV = f"{ENV_PREFIX}{CONFIG}"

# Kubernetes describes every service to every pod: a service named kafka-retry gives KAFKA_RETRY_SERVICE_HOST and so on.
_KUBERNETES = re.compile(r"(?:^|.*_)SERVICE_(?:HOST|PORT)(?:_\w+)?|PORT|(?:^|.*_)PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?")


class Given(NamedTuple):
    """One value of one setting, as text, from one source."""

    setting: Setting
    text: str
    origin: str
    """For a person: `environment KAFKA_RETRY_HTTP_PORT`."""
    is_file: bool = False
    """The text is the content of a file that the source names."""


@dataclass(slots=True)
class Source:
    """All that one source gives; sources are asked in order of precedence."""

    given: list[Given] = field(default_factory=list)
    client: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Property -> (value, origin)."""
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    """Names of the settings whose files cannot be read."""
    _named: set[str] = field(default_factory=set)
    """The properties as the source names them, those of files included."""

    def add_file(self, setting: Setting, path: str, origin: str) -> None:
        """Take the value of a secret setting from a file, or note why that is impossible."""
        try:
            text = secret_files.read_secret(path)
        except ValueError as problem:
            self.problems.append(f"{setting.file_name}: {path!r} {problem} (from {origin})")
            self.unread.add(setting.name)
        else:
            self.given.append(Given(setting, text, f"{origin}, file {printable(path)}", is_file=True))

    def add_client(self, name: str, value: str, origin: str) -> None:
        """Take a librdkafka property or the file of a secret one, or note why it is refused."""
        secret = secret_files.secret_property(name)
        other = secret or f"{name}{secret_files.PROPERTY_SUFFIX}"
        if other in self._named:
            self.problems.append(
                f"client properties {other} and {name}: both are set: give the value or its file (from {origin})"
            )
            return
        self._named.add(name)
        if secret is None:
            self._add_property(name, value, origin)
            return
        try:
            text = secret_files.read_secret(value)
        except ValueError as problem:
            self.problems.append(f"client property {name}: {value!r} {problem} (from {origin})")
        else:
            self._add_property(secret, text, f"{origin}, file {printable(value)}")

    def _add_property(self, name: str, value: str, origin: str) -> None:
        refusal = client.refusal(name)
        if refusal is not None:
            shown = client.MASK if client.is_secret(name) else quoted(value)
            self.problems.append(f"client property {plain(name)}: {shown}: {refusal} (from {origin})")
        elif not value.strip():
            self.problems.append(
                f"client property {plain(name)}: has no value: give one, or leave it out (from {origin})"
            )
        else:
            self.client[name] = (value, origin)


def not_allowed(given: Given) -> str:
    """Return the line for a value that its setting does not take; a secret is not repeated."""
    shown = client.MASK if given.setting.secret else quoted(given.text)
    return (
        f"{given.setting.name}: {shown} is not allowed: it must be {given.setting.kind.allowed} (from {given.origin})"
    )


def from_flags(flags: Mapping[str, str], properties: Sequence[str]) -> Source:
    """Read the command line.

    Args:
        flags: Attribute of the setting -> text.
        properties: `key=value` of each `--client`.
    """
    source = Source()
    for setting in SETTINGS:
        if (path := flags.get(f"{setting.attribute}_file")) is not None and setting.secret:
            source.add_file(setting, path, f"command line {setting.flag}-file")
        text = flags.get(setting.attribute)
        if text is None:
            continue
        if not text.strip():
            source.problems.append(not_allowed(Given(setting, text, f"command line {setting.flag}")))
        else:
            negative = setting.kind.is_switch and text == "false"
            flag = setting.negative_flag if negative else setting.flag
            source.given.append(Given(setting, text, f"command line {flag}"))
    for text in properties:
        name, equals, value = text.partition("=")
        if equals:
            source.add_client(name.strip(), value, "command line --client")
        else:
            shown = client.MASK if client.is_secret(text) else quoted(text)
            source.problems.append(
                f"client property {shown}: has no value: it must be key=value, such as "
                "security.protocol=SASL_SSL (from command line --client)"
            )
    return source


def from_environment(environ: Mapping[str, str]) -> Source:
    """Read KAFKA_RETRY_*. An unknown name is a warning, not an error: other programs may use the prefix too.

    An empty variable counts as not set, for any setting: Compose and Helm express it so. It is a warning, because
    the value may also have been lost by mistake.
    """
    source = Source()
    for env in sorted(name for name in environ if name.startswith(ENV_PREFIX)):
        name, text, origin = env.removeprefix(ENV_PREFIX), environ[env], f"environment {env}"
        setting = BY_NAME.get(name) or BY_ALIAS.get(name)
        in_file = BY_FILE.get(name)
        is_property = name.startswith(client.PREFIX) and len(name) > len(client.PREFIX)
        if (setting is not None or in_file is not None or is_property or name == CONFIG) and not text.strip():
            source.warnings.append(f"{plain(env)}: is empty: it counts as not set")
        elif in_file is not None:
            source.add_file(in_file, text, origin)
        elif setting is not None:
            source.given.append(Given(setting, text, origin))
        elif name in WITHOUT_MEANING:
            source.warnings.append(f"{env}: has no meaning here and is ignored: {WITHOUT_MEANING[name]}")
        elif name == CONFIG or _KUBERNETES.fullmatch(name):
            continue
        elif is_property:
            source.add_client(client.property_of(name.removeprefix(client.PREFIX)), text, origin)
        else:
            hint = closest(name, [*BY_NAME, *BY_ALIAS, *BY_FILE, CONFIG], ENV_PREFIX + "{}")
            source.warnings.append(f"{plain(env)}: there is no such setting, it is ignored{hint}")
    return source


def config_of(environ: Mapping[str, str]) -> Path | None:
    """Return the YAML file that the environment names."""
    text = environ.get(CONFIG_ENV, "").strip()
    return Path(text) if text else None


def from_yaml(path: Path, named_by: str) -> Source:
    """Read a YAML file of settings.

    Args:
        path: The file.
        named_by: What names it, for the messages: `--config`.
    """
    source = Source()
    try:
        root = nodes.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        source.problems.append(f"{named_by}: {str(path)!r} cannot be read: {error.strerror or error}")
        return source
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        source.problems.append(f"{named_by}: {str(path)!r} is no YAML file in UTF-8: {nodes.reason(error)}")
        return source
    if root is None:
        return source
    if not isinstance(root, yaml.MappingNode):
        source.problems.append(f"{named_by}: {str(path)!r} must be a mapping such as `input_topic: retry`")
        return source
    _read_mapping(root, path, source)
    return source


def _read_mapping(root: yaml.MappingNode, path: Path, source: Source) -> None:
    known = {name.lower(): setting for name, setting in [*BY_NAME.items(), *BY_ALIAS.items()]}
    for key, node, origin in _pairs(root, path, source):
        if key == "client":
            _read_client(node, path, source)
        elif key.islower() and key.upper() in BY_FILE:
            _read_file_name(BY_FILE[key.upper()], node, origin, source)
        elif key.upper() in WITHOUT_MEANING and key.islower():
            reason = WITHOUT_MEANING[key.upper()]
            source.warnings.append(f"{key}: has no meaning here and is ignored: {reason} (from {origin})")
        elif key not in known:
            hint = closest(key, [*known, *map(str.lower, BY_FILE), "client"])
            source.problems.append(f"{plain(key)}: there is no such setting{hint} (from {origin})")
        else:
            _read_value(known[key], node, origin, source)


def _pairs(mapping: yaml.MappingNode, path: Path, source: Source) -> Iterable[tuple[str, yaml.Node, str]]:
    """Yield key, value and origin; a key that is there twice is a problem, never a silent choice."""
    for key, node, line, repeated in nodes.pairs(mapping):
        origin = f"{path}:{line}"
        if repeated:
            source.problems.append(f"{plain(key)}: is there more than once: it must be given once (from {origin})")
        else:
            yield key, node, origin


def _read_client(node: yaml.Node, path: Path, source: Source) -> None:
    if not isinstance(node, yaml.MappingNode):
        origin = f"{path}:{node.start_mark.line + 1}"
        source.problems.append(f"client: must be a mapping such as {{security.protocol: SASL_SSL}} (from {origin})")
        return
    for name, value, origin in _pairs(node, path, source):
        if isinstance(value, yaml.ScalarNode):
            source.add_client(name, value.value, origin)
        else:
            source.problems.append(
                f"client property {plain(name)}: must be one value, no list or mapping (from {origin})"
            )


def _read_value(setting: Setting, node: yaml.Node, origin: str, source: Source) -> None:
    try:
        source.given.append(Given(setting, nodes.text_of(node, setting.kind), origin))
    except ValueError as form:
        source.problems.append(
            f"{setting.name}: {form} is not allowed: it must be {setting.kind.allowed} (from {origin})"
        )


def _read_file_name(setting: Setting, node: yaml.Node, origin: str, source: Source) -> None:
    try:
        path = nodes.text_of(node, kinds.TEXT)
    except ValueError as form:
        source.problems.append(
            f"{setting.file_name}: {form} is not allowed: it must be {secret_files.ALLOWED} (from {origin})"
        )
    else:
        source.add_file(setting, path, origin)
