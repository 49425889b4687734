"""The kinds of values that only policies have: names, a backoff, a share, policies by exception."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import yaml

from sidecar.policy.backoff import Backoff
from sidecar.settings import forms, nodes, origin_policies
from sidecar.settings.kinds import DAY_MS, Kind, NotAllowed, duration, show_duration, whole
from sidecar.settings.wording import plain, quoted

ALLOWED: Final = "a mapping of names to settings of their own, such as {slow: {delays: [1h, 6h], max_age: 7d}}"
_FOREVER_MS: Final = 36_500 * DAY_MS
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_BACKOFF: Final = (
    "a mapping such as {first: 1s, factor: 2, max: 1h, attempts: 8}; factor is 2 and max 365d when left out"
)
_BY_EXCEPTION: Final = "a mapping of class names or globs to names of POLICIES, such as {com.acme.Timeout*: slow}"


def _parse_name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ValueError(text)
    return text


NAME: Final = Kind(
    "a name of 1 to 64 characters out of a-z, A-Z, 0-9, '.', '_', '-'", _parse_name, form=forms.Text(_NAME.pattern)
)


def decimal(low: float, high: float, such_as: str) -> Kind:
    """Return the kind of numbers from low to high, both included, whole or with a decimal point."""

    def parse(text: str) -> float:
        if _DECIMAL.fullmatch(text) is None or not low <= float(text) <= high:
            raise ValueError(text)
        return float(text)

    return Kind(
        f"a number from {low:g} to {high:,g}, such as {such_as}",
        parse,
        lambda value: f"{value:g}",
        is_decimal=True,
        form=forms.Decimal(low, high),
    )


def share() -> Kind:
    """Return the kind of shares."""
    return decimal(0, 1, "0.2")


class _Part(NamedTuple):
    """A part of a backoff."""

    name: str
    kind: Kind
    yaml_key: str


_PARTS: Final = (
    _Part("first_ms", duration(1, _FOREVER_MS), "first"),
    _Part("factor", decimal(1, 100, "2"), "factor"),
    _Part("max_ms", duration(1, _FOREVER_MS), "max"),
    _Part("attempts", whole(1, 1_000), "attempts"),
)
_DEFAULTS: Final = {"factor": 2.0, "max_ms": 365 * DAY_MS}


def _mapping(text: str, allowed: str) -> yaml.MappingNode | None:
    """Return the root, None when there is nothing."""
    try:
        root = nodes.compose(text)
    except yaml.YAMLError as error:
        raise NotAllowed([f"is no YAML: {nodes.reason(error)}: it must be {allowed}"]) from error
    if root is None or isinstance(root, yaml.MappingNode):
        return root
    raise ValueError(text)


def _parse_backoff(text: str) -> Backoff:
    if (root := _mapping(text, _BACKOFF)) is None:
        raise ValueError(text)
    given: dict[str, object] = {}
    problems = list(origin_policies.read(root, _PARTS, given))
    missing = [part.yaml_key for part in _PARTS if part.name not in given.keys() | _DEFAULTS]
    if missing and not problems:
        problems.append(f"{' and '.join(missing)} must be given: it must be {_BACKOFF}")
    if problems:
        raise NotAllowed(problems)
    values = _DEFAULTS | given
    return Backoff(**values)  # type: ignore[arg-type]  # parsed by _PARTS


def _show_backoff(backoff: Backoff) -> str:
    return json.dumps(
        {
            "first": show_duration(backoff.first_ms),
            "factor": f"{backoff.factor:g}",
            "max": show_duration(backoff.max_ms),
            "attempts": str(backoff.attempts),
        }
    )


BACKOFF: Final = Kind(
    _BACKOFF,
    _parse_backoff,
    _show_backoff,
    is_mapping=True,
    form=forms.fields(_PARTS, [part.yaml_key for part in _PARTS if part.name not in _DEFAULTS]),
)


def _parse_by_exception(text: str) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    problems: list[str] = []
    root = _mapping(text, _BY_EXCEPTION)
    for key, node, _, repeated in () if root is None else nodes.pairs(root):
        name = node.value if isinstance(node, yaml.ScalarNode) else ""
        if repeated:
            problems.append(f"{plain(key)}: is there more than once: it must be given once")
        elif not key or not key.isprintable() or set(key) & {" ", ","}:
            problems.append(f"{quoted(key)} is not allowed: it must be a class name or a glob such as com.acme.*")
        elif _NAME.fullmatch(name) is None:
            problems.append(f"{plain(key)}: {quoted(name)} is not allowed: it must be {NAME.allowed}")
        found.append((key, name))
    if problems:
        raise NotAllowed(problems[: origin_policies.PROBLEMS_MAX])
    return tuple(found)


EXCEPTION_POLICIES: Final = Kind(
    _BY_EXCEPTION,
    _parse_by_exception,
    lambda pairs: json.dumps(dict(pairs)) if pairs else "",
    is_mapping=True,
    form=forms.Entries(forms.Text(r"[^\x00-\x20\x7f,]+"), forms.Text(_NAME.pattern)),
)
"""Pairs of a class name or glob and a policy's name."""
