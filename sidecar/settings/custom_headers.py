"""The header names and units of a home-made retry topic."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import yaml

from sidecar.contract.dialects.custom import UNITS_OF_DELAY, UNITS_OF_DUE, CustomHeaders
from sidecar.settings import forms, nodes, origin_policies
from sidecar.settings.kinds import Kind, NotAllowed, choice

ALLOWED: Final = (
    "a mapping of meanings to header names, such as {origin: x-topic, due: x-retry-at, due_unit: s, attempt: x-tries}"
)
_NAME = re.compile(r"[!-~]{1,255}")
_OURS: Final = ("retry-", "x-ibm-retry-", "__connect.errors.")
_ALLOWED_OURS: Final = CustomHeaders().attempt


def _parse_name(text: str) -> str:
    if _NAME.fullmatch(text) is None or (text.startswith(_OURS) and text != _ALLOWED_OURS):
        raise ValueError(text)
    return text


_HEADER: Final = Kind(
    "a header name of printable ASCII characters that does not begin with retry-, x-ibm-retry- or __connect.errors.",
    _parse_name,
    form=forms.Text(
        _NAME.pattern, refused="|".join(map(re.escape, _OURS)), accepted=(_ALLOWED_OURS,) if _ALLOWED_OURS else ()
    ),
)


class _Part(NamedTuple):
    """A part of the mapping."""

    name: str
    kind: Kind

    @property
    def yaml_key(self) -> str:
        return self.name


_UNITS: Final = {"due_unit": choice(*UNITS_OF_DUE), "delay_unit": choice(*UNITS_OF_DELAY)}
_PARTS: Final = tuple(_Part(name, _UNITS.get(name, _HEADER)) for name in CustomHeaders._fields)


def _parse(text: str) -> CustomHeaders:
    try:
        root = nodes.compose(text)
    except yaml.YAMLError as error:
        raise NotAllowed([f"is no YAML: {nodes.reason(error)}: it must be {ALLOWED}"]) from error
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(text)
    given: dict[str, object] = {}
    problems = list(origin_policies.read(root, _PARTS, given))
    custom = CustomHeaders(**given)  # type: ignore[arg-type]  # parsed by _PARTS
    if not problems and not custom.origin:
        problems.append(f"origin must be given, the header that names the topic to deliver to: it must be {ALLOWED}")
    repeated = sorted({name for name in custom.named if custom.named.count(name) > 1})
    problems += [f"{name}: is there with two meanings: it must have one" for name in repeated]
    if problems:
        raise NotAllowed(problems)
    return custom


def _show(custom: CustomHeaders) -> str:
    defaults = CustomHeaders()._asdict()
    return json.dumps({name: value for name, value in custom._asdict().items() if value != defaults[name]})


CUSTOM_HEADERS: Final = Kind(ALLOWED, _parse, _show, is_mapping=True, form=forms.fields(_PARTS, ["origin"]))
