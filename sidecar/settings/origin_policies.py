"""Policies of single origins, and those with a name: each overrides some of the general settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import yaml

from sidecar.settings import nodes
from sidecar.settings.kinds import Kind, NotAllowed
from sidecar.settings.wording import closest, plain, quoted

ALLOWED: Final = (
    "a mapping of topics or globs to settings of their own, such as {payments: {delays: [1s, 10s], max_attempts: 2}}"
)

PROBLEMS_MAX: Final = 20
"""Checking stops after this many mistakes: the first ones show the cause, and a text can hold nothing but mistakes."""


class Field(Protocol):
    """A setting that a policy may override, or a part of one."""

    @property
    def name(self) -> str: ...

    @property
    def yaml_key(self) -> str: ...

    @property
    def kind(self) -> Kind: ...


class OriginPolicy(NamedTuple):
    """The overrides for the origins of one topic name or glob, or for those who choose the policy by its name."""

    origins: str
    """The topic, the glob or the name."""
    given: Mapping[str, object]
    """Setting's name -> value; all other settings keep their general values."""


def values_of(name: str, policies: Sequence[OriginPolicy]) -> set[str]:
    """Return the values that policies give for a setting which is a text."""
    return {str(each.given[name]) for each in policies if name in each.given}


def parse(text: str, fields: Sequence[Field], names: Kind) -> tuple[OriginPolicy, ...]:
    """Return the policies in their order.

    Args:
        text: YAML, and so JSON too.
        fields: The settings that a policy may override.
        names: What a policy is for, or its name.

    Raises:
        ValueError: The text is not such a mapping; NotAllowed when it is one that contains mistakes.
    """
    try:
        root = nodes.compose(text)
    except yaml.YAMLError as error:
        raise NotAllowed([f"is no YAML: {nodes.reason(error)}: it must be {ALLOWED}"]) from error
    if root is None or nodes.is_null(root):
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(text)
    found: list[OriginPolicy] = []
    if problems := list(islice(_read_all(root, fields, names, found), PROBLEMS_MAX)):
        more = [f"there may be more mistakes than these {PROBLEMS_MAX}"] if len(problems) == PROBLEMS_MAX else []
        raise NotAllowed([*problems, *more])
    return tuple(found)


def show(policies: Sequence[OriginPolicy], fields: Sequence[Field]) -> str:
    """Return the text that `parse` reads: JSON on one line, empty when there are none."""
    by_name = {field.name: field for field in fields}
    shown: dict[str, dict[str, object]] = {
        origins: {
            by_name[name].yaml_key: by_name[name].kind.show(value) or ({} if by_name[name].kind.is_mapping else [])
            for name, value in given.items()
        }
        for origins, given in policies
    }
    return json.dumps(shown) if shown else ""


def _read_all(root: yaml.MappingNode, fields: Sequence[Field], names: Kind, found: list[OriginPolicy]) -> Iterator[str]:
    """Put the policies into `found`; yield what is wrong with them."""
    for origins, node, _, repeated in nodes.pairs(root):
        given: dict[str, object] = {}
        lines = list(_entry_problems(origins, node, repeated, names)) or read(node, fields, given)
        yield from (f"{plain(origins)}: {line}" for line in lines)
        found.append(OriginPolicy(origins, given))


def _entry_problems(origins: str, node: yaml.Node, repeated: bool, names: Kind) -> Iterator[str]:
    if repeated:
        yield "is there more than once: it must be given once"
    try:
        names.parse(origins)
    except ValueError:
        yield f"is not allowed: it must be {names.allowed}"
    if not isinstance(node, yaml.MappingNode):
        yield "must be a mapping such as {max_attempts: 3}"


def read(mapping: yaml.Node, fields: Sequence[Field], given: dict[str, object]) -> Iterator[str]:
    """Put what a mapping says into `given`, by the names of the fields; yield what is wrong with it."""
    assert isinstance(mapping, yaml.MappingNode)  # _entry_problems has looked
    known = {field.yaml_key: field for field in fields}
    for key, node, _, repeated in nodes.pairs(mapping):
        field = known.get(key)
        if field is None:
            hint = closest(key, known)
            yield f"{plain(key)}: there is no such key here{hint}; allowed are {', '.join(known)}"
        elif repeated:
            yield f"{key}: is there more than once: it must be given once"
        else:
            try:
                text = nodes.text_of(node, field.kind)
            except ValueError as form:
                yield f"{key}: {form} is not allowed: it must be {field.kind.allowed}"
                continue
            try:
                given[field.name] = field.kind.parse(text.strip())
            except NotAllowed as mistakes:
                yield from (f"{key}: {line}" for line in mistakes.lines)
            except ValueError:
                yield f"{key}: {quoted(text)} is not allowed: it must be {field.kind.allowed}"
