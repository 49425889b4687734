"""YAML as it is written: keys, and values as the text that other sources would give.

YAML's own types would turn `0123` into 83 and `1:30` into 90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import yaml

from sidecar.settings.kinds import Kind


class Pair(NamedTuple):
    """A key of a mapping and what it is given."""

    key: str
    node: yaml.Node
    line: int
    """The line of the key, from 1."""
    repeated: bool
    """The key was there before: a mistake, never a silent choice."""


NESTING_MAX: Final = 32
_BRACKET = re.compile(r"[\[{\]}]")


def compose(text: str) -> yaml.Node | None:
    """Return the root of a YAML document, None of an empty one. Raises yaml.YAMLError."""
    depth = 0
    for bracket in _BRACKET.findall(text):
        # In quotes they count too: what is meant has no such depth either way. The library's time is quadratic in it.
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > NESTING_MAX:
            raise yaml.YAMLError(f"its brackets are nested more than {NESTING_MAX} deep")
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error


def reason(error: Exception) -> str:
    """Return what is wrong and where; never the text itself, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split())


def pairs(mapping: yaml.MappingNode) -> Iterator[Pair]:
    """Yield the keys in their order."""
    seen: set[str] = set()
    for key_node, node in mapping.value:
        key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "a key"
        yield Pair(key, node, key_node.start_mark.line + 1, key in seen)
        seen.add(key)


def is_null(node: yaml.Node) -> bool:
    """Tell whether there is no value, as behind `key:` and `key: ~`."""
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def text_of(node: yaml.Node, kind: Kind) -> str:
    """Return the value as text for `kind.parse`.

    Raises:
        ValueError: The kind is not written so; the message is `a list`, `a mapping` or `an empty value`.
    """
    if isinstance(node, yaml.ScalarNode):
        if is_null(node) or not node.value.strip():
            raise ValueError("an empty value")
        return str(node.value)
    if isinstance(node, yaml.MappingNode):
        if kind.is_mapping:
            return str(yaml.serialize(node))
        raise ValueError("a mapping")
    if kind.is_list and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return ",".join(item.value for item in node.value)
    raise ValueError("a list")
