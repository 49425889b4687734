"""The Grafana dashboard, made from the table of metrics.

Each metric has its panel here with the question that it answers; one without gets a panel by its kind, so that no
metric is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.metrics import DECLARATIONS, DECLARED, PREFIX, Declaration

Json = dict[str, Any]

WHERE: Final = 'namespace=~"$namespace",job=~"$job"'
"""The selector of the instances; words that start with $ are variables of the dashboard."""
_RATE: Final = "$__rate_interval"
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GRID: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the names of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; its description is the metric's help text unless given."""

    metric: str
    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"


def _m(name: str, *matchers: str, suffix: str = "") -> str:
    """Return the selector of a metric of the table."""
    return f"{PREFIX}{DECLARED[name].name}{suffix}{{{','.join((WHERE, *matchers))}}}"


def _sum(expr: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def _max(expr: str, *by: str) -> str:
    return f"max by ({', '.join(by)}) ({expr})" if by else f"max({expr})"


def _rate(name: str, *matchers: str, suffix: str = "") -> str:
    return f"rate({_m(name, *matchers, suffix=suffix)}[{_RATE}])"


def _quantiles(name: str) -> tuple[Query, ...]:
    buckets = _sum(_rate(name, suffix="_bucket"), "le")
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


def _one(expr: str, legend: str = "{{instance}}") -> tuple[Query, ...]:
    return (Query(expr, legend),)


ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "At a glance",
        (
            Panel("pending", "Pending", _one(_sum(_m("pending")), "pending"), width=4, kind="stat"),
            Panel("due_backlog", "Due, not fired", _one(_sum(_m("due_backlog")), "due"), width=4, kind="stat"),
            Panel("ready", "Ready instances", _one(_sum(_m("ready")), "ready"), width=4, kind="stat"),
            Panel(
                "partitions_without_owner",
                "Partitions without owner",
                _one(_max(_m("partitions_without_owner")), "partitions"),
                width=4,
                kind="stat",
            ),
            Panel(
                "lateness_seconds",
                "Lateness, 99th percentile",
                (_quantiles("lateness_seconds")[-1],),
                unit="s",
                width=4,
                kind="stat",
            ),
            Panel(
                "dead_lettered_total",
                "Dead letters in the last hour",
                _one(_sum(f"increase({_m('dead_lettered_total')}[1h])"), "dead letters"),
                width=4,
                kind="stat",
            ),
        ),
    ),
    (
        "In and out",
        (
            Panel(
                "received_total",
                "Ingested, by verdict",
                _one(_sum(_rate("received_total"), "verdict"), "{{verdict}}"),
                "cps",
            ),
            Panel("fired_total", "Fired, by origin", _one(_sum(_rate("fired_total"), "origin"), "{{origin}}"), "cps"),
            Panel(
                "dead_lettered_total",
                "Dead letters, by reason",
                _one(_sum(_rate("dead_lettered_total"), "reason"), "{{reason}}"),
                "cps",
            ),
            Panel("pending", "Pending, by origin", _one(_sum(_m("pending"), "origin"), "{{origin}}")),
            Panel("cancelled_total", "Cancelled", _one(_sum(_rate("cancelled_total")), "cancelled"), "cps"),
            Panel(
                "input_lost_total",
                "Lost to retention, by partition",
                _one(_sum(_m("input_lost_total"), "partition"), "{{partition}}"),
            ),
            Panel(
                "input_lag",
                "Not ingested yet, by partition",
                _one(_max(_m("input_lag"), "partition"), "partition {{partition}}"),
            ),
            Panel("dlq_records", "Records in the DLQ", _one(_max(_m("dlq_records"), "topic"), "{{topic}}")),
            Panel(
                "reloads_total",
                "Reloads of the policies",
                _one(_sum(f"increase({_m('reloads_total')}[1h])", "outcome"), "{{outcome}}"),
            ),
        ),
    ),
    (
        "Lateness",
        (
            Panel("lateness_seconds", "Lateness", _quantiles("lateness_seconds"), "s"),
            Panel(
                "watermark_lag_seconds",
                "Oldest message that should have fired",
                _one(_max(_m("watermark_lag_seconds"), "partition"), "partition {{partition}}"),
                "s",
            ),
            Panel(
                "due_backlog",
                "Due, not fired",
                _one(_sum(_m("due_backlog"), "partition"), "partition {{partition}}"),
            ),
        ),
    ),
    (
        "Origins",
        (
            Panel(
                "origin_state",
                "Closed origins",
                _one(_max(_m("origin_state", 'state!="open"'), "origin", "state"), "{{origin}}: {{state}}"),
                width=12,
            ),
            Panel(
                "deferred_total",
                "Deferred because the origin is closed",
                _one(_sum(_rate("deferred_total"), "origin"), "{{origin}}"),
                "cps",
                width=12,
            ),
        ),
    ),
    (
        "Partitions and restore",
        (
            Panel("state", "Partitions, by state", _one(_sum(_m("state"), "state"), "{{state}}")),
            Panel(
                "restore_remaining",
                "Changelog records left to restore",
                _one(_max(_m("restore_remaining"), "partition"), "partition {{partition}}"),
            ),
            Panel("restore_seconds", "Time of a restore", _quantiles("restore_seconds"), "s"),
            Panel("ready", "Ready", _one(_m("ready")), width=12),
            Panel(
                "last_stable_offset_stuck_seconds",
                "Last stable offset stuck",
                _one(_max(_m("last_stable_offset_stuck_seconds"), "partition"), "partition {{partition}}"),
                "s",
                width=12,
            ),
        ),
    ),
    (
        "Transactions and resources",
        (
            Panel(
                "transactions_total",
                "Transactions, by outcome",
                _one(_sum(_rate("transactions_total"), "outcome"), "{{outcome}}"),
                "cps",
            ),
            Panel("commit_seconds", "Time of a transaction", _quantiles("commit_seconds"), "s"),
            Panel(
                "changelog_bytes_total",
                "Written to the changelog",
                _one(_sum(_rate("changelog_bytes_total"), "instance")),
                "Bps",
            ),
            Panel("store_bytes", "State folder", _one(_m("store_bytes")), "bytes"),
            Panel("store_free_bytes", "Free space for the state folder", _one(_m("store_free_bytes")), "bytes"),
            Panel("clock_skew_seconds", "Clock skew against the broker", _one(_m("clock_skew_seconds")), "s"),
            Panel("build_info", "Versions", _one(_sum(_m("build_info"), "version"), "{{version}}"), width=24),
        ),
    ),
)


def text() -> str:
    """Return deploy/grafana/retry-sidecar.json."""
    return json.dumps(_dashboard(), indent=2) + "\n"


def _by_kind(metric: Declaration) -> Panel:
    """Return the default panel of a metric, with a line for each combination of labels."""
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or "{{instance}}"
    by = metric.labels or ("instance",)
    title = metric.name.replace("_", " ").capitalize()
    if metric.kind == "histogram":
        return Panel(metric.name, title, _quantiles(metric.name), "s")
    if metric.kind == "counter":
        return Panel(metric.name, title, _one(_sum(_rate(metric.name), *by), legend), "cps")
    return Panel(metric.name, title, _one(_max(_m(metric.name), *by), legend))


def _rows() -> Iterator[tuple[str, Sequence[Panel]]]:
    yield from ROWS
    shown = {panel.metric for _, panels in ROWS for panel in panels}
    rest = [_by_kind(metric) for metric in DECLARATIONS if metric.name not in shown]
    if rest:
        yield "More", rest


def _panels() -> Iterator[Json]:
    number, y = 1, 0
    for title, panels in _rows():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _GRID, "h": 1},
        }
        number, y, x = number + 1, y + 1, 0
        height = _HEIGHT // 2 if all(panel.kind == "stat" for panel in panels) else _HEIGHT
        for panel in panels:
            if x + panel.width > _GRID:
                x, y = 0, y + height
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height})
            number, x = number + 1, x + panel.width
        y += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": DECLARED[panel.metric].help,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _DATASOURCE, "expr": query.expr, "legendFormat": query.legend}
            for at, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **({} if panel.metric == "clock_skew_seconds" else {"min": 0})},
            "overrides": [],
        },
        "options": _OPTIONS[panel.kind],
    }


_OPTIONS: Final[dict[str, Json]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"},
}


def _dashboard() -> Json:
    source = f"{PREFIX}build_info"
    return {
        "uid": "retry-sidecar",
        "title": "retry-sidecar",
        "tags": ["kafka", "retry"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("namespace", f"label_values({source}, namespace)"),
                _variable("job", f'label_values({source}{{namespace=~"$namespace"}}, job)'),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": list(_panels()),
    }


def _variable(name: str, query: str) -> Json:
    """Return a variable over the values of a label. "All" matches series without the label too."""
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
