"""The Grafana dashboard asks only for what there is, and for all of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deploy.dashboard import WHERE
from deploy.generated import DASHBOARD
from sidecar.metrics import DECLARATIONS, PREFIX
from tests.deploy.queries import known_series, mistakes, read

BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [each for each in BOARD["panels"] if each["type"] != "row"]
QUERIES: list[str] = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})


def concrete(query: str) -> str:
    """Return the query with Grafana's variables filled in."""
    return query.replace("$__rate_interval", "1m").replace("$namespace", ".*").replace("$job", ".*")


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_series_and_labels_that_there_are(query: str) -> None:
    assert mistakes(concrete(query)) == []
    assert query.count(WHERE) == len(read(concrete(query)).selectors)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("retry_sidecar_pendings", ["there is no series retry_sidecar_pendings"]),
        ('retry_sidecar_pending{topic="x"}', ["retry_sidecar_pending has no label topic"]),
        ("sum by (origin) (retry_sidecar_due_backlog)", ["nothing here has a label origin"]),
        ("rate(retry_sidecar_lateness_seconds[1m])", ["there is no series retry_sidecar_lateness_seconds"]),
    ],
)
def test_a_wrong_query_would_be_noticed(query: str, said: list[str]) -> None:
    assert mistakes(query) == said


def test_every_metric_is_shown() -> None:
    asked = {selector.series for query in QUERIES for selector in read(concrete(query)).selectors}
    for metric in DECLARATIONS:
        assert any(each.removesuffix("_bucket") == PREFIX + metric.name for each in asked), metric.name


def test_every_legend_names_a_label_that_the_line_has() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            reading = read(concrete(target["expr"]))
            grouped = "sum(" in target["expr"] or " by (" in target["expr"] or "max(" in target["expr"]
            own = known_series()[reading.selectors[0].series] | {"instance"}
            there = reading.labels if grouped else own
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in there, (panel["title"], label)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_every_panel_says_what_it_shows() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
