"""Reads PromQL: which series a query asks for, and by which labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import promql_parser as promql

from sidecar.metrics import DECLARATIONS, PREFIX

OF_THE_SCRAPE: Final = frozenset({"namespace", "job", "instance", "pod"})
"""Labels that Prometheus gives to what it reads."""
FOREIGN: Final = {"up": frozenset[str](), "process_start_time_seconds": frozenset[str]()}
"""Series that are not in the table of metrics."""


class Selector(NamedTuple):
    """A series with the labels that are asked for."""

    series: str
    labels: frozenset[str]


class Reading(NamedTuple):
    """What a query says."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]
    """Labels that results are grouped or matched by."""


def read(query: str) -> Reading:
    """Return what a query asks for. Raises ValueError when it is no PromQL."""
    selectors: list[Selector] = []
    labels: set[str] = set()
    for node in _nodes(promql.parse(query)):
        if isinstance(node, promql.VectorSelector):
            selectors.append(Selector(str(node.name), frozenset(each.name for each in node.matchers.matchers)))
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            labels.update(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            labels.update(node.modifier.matching.labels)
    return Reading(tuple(selectors), frozenset(labels))


def known_series() -> dict[str, frozenset[str]]:
    """Return each series that there is -> its own labels."""
    known = dict(FOREIGN)
    for metric in DECLARATIONS:
        labels = frozenset(metric.labels)
        name = PREFIX + metric.name
        if metric.kind == "histogram":
            known.update({f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels})
        else:
            known[name] = labels | ({"version"} if metric.kind == "info" else set())
    return known


def mistakes(query: str) -> list[str]:
    """Return what in a query cannot be answered: series or labels that there are not."""
    known, reading = known_series(), read(query)
    found = [f"there is no series {each.series}" for each in reading.selectors if each.series not in known]
    if found:
        return found
    there = OF_THE_SCRAPE.union(*(known[each.series] for each in reading.selectors))
    for each in reading.selectors:
        found += [f"{each.series} has no label {label}" for label in each.labels - known[each.series] - OF_THE_SCRAPE]
    return found + [f"nothing here has a label {label}" for label in reading.labels - there]


def _nodes(node: object) -> Iterator[object]:
    yield node
    if isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    children: list[object] = []
    if isinstance(node, promql.BinaryExpr):
        children = [node.lhs, node.rhs]
    elif isinstance(node, promql.Call):
        children = list(node.args)
    elif isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        children = [node.expr]
    for child in children:
        yield from _nodes(child)
