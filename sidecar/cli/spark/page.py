"""The page of `spark report`: one self-contained file, safe for any header that senders write."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from string import Template
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from sidecar.cli.dlq.filter import NONE
from sidecar.cli.instants import shown_instant
from sidecar.dlq.count import OTHERS, shown_hour
from sidecar.errors import printable
from sidecar.settings import Settings
from sidecar.spark.jobs.report import HOUR_MS, HOURS_MAX, Dimension, Kind, NameCounts, Report

_PACKAGE: Final = files("sidecar")
_TITLES: Final = {Kind.RETRY: "Retries", Kind.DEAD: "Dead letters"}


def page(found: Report, settings: Settings, now_ms: int) -> str:
    """Return the page.

    Names become text of elements, so none can become an element. The page allows only its two scripts, by their hashes,
    and these receive numbers only, no names.

    Args:
        found: The report.
        settings: The settings, which name the topics.
        now_ms: The time of the report.
    """
    scripts = {
        "uplot": (_PACKAGE / "api/static/uplot/uPlot.iife.min.js").read_text(encoding="utf-8"),
        "script": (_PACKAGE / "cli/spark/page.js").read_text(encoding="utf-8"),
    }
    main = Element("main")
    about = f"Application {settings.streams_app_id}, as of {shown_instant(now_ms)}. All hours are UTC."
    SubElement(main, "h1").text = "Retries and dead letters"
    SubElement(main, "p", {"class": "soft"}).text = about
    for kind, topic in topics(settings).items():
        main.append(_section(found, kind, topic))
    hours = [{"kind": kind.value, **_hours(found, kind, now_ms)} for kind in topics(settings)]
    template = Template((_PACKAGE / "cli/spark/page.html").read_text(encoding="utf-8"))
    return template.substitute(
        scripts,
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts.values()),
        uplot_style=(_PACKAGE / "api/static/uplot/uPlot.min.css").read_text(encoding="utf-8"),
        main=tostring(main, encoding="unicode", method="html"),
        hours=json.dumps(hours),
    )


def topics(settings: Settings) -> dict[Kind, str]:
    """Return the topics of each kind, for display."""
    return {Kind.RETRY: settings.input_topic, Kind.DEAD: ", ".join(settings.dlq_topics)}


def shown_name(dimension: Dimension, name: str) -> str:
    """Return a name for display, without control characters."""
    if dimension is Dimension.HOUR:
        name = shown_hour(int(name)) if name else ""
    return printable(name) or NONE


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _hours(found: Report, kind: Kind, now_ms: int) -> dict[str, list[int]]:
    """Return the hours of the chart in epoch seconds, and their counts.

    Senders choose timestamps. Hours in the future or long before the last hour are only in the table.
    """
    names = found.by.get(Dimension.HOUR, {}).get(kind, NameCounts())
    hours = {int(name): count for name, count in names.shown if name and int(name) <= now_ms}
    first_ms = max(hours, default=0) - HOURS_MAX * HOUR_MS
    drawn = {at_ms: count for at_ms, count in hours.items() if at_ms > first_ms}
    return {"hours": [at_ms // 1000 for at_ms in drawn], "counts": list(drawn.values())}


def _section(found: Report, kind: Kind, topic: str) -> Element:
    total = found.totals.get(kind, 0)
    section = Element("section", {"class": kind.value})
    heading = SubElement(section, "h2")
    heading.text = f"{_TITLES[kind]} "
    SubElement(heading, "span", {"class": "soft"}).text = f"{total:,} on {topic}"
    if not total:
        return section
    SubElement(section, "div", {"class": "hours", "id": f"hours-{kind.value}", "aria-hidden": "true"})
    tables = SubElement(section, "div", {"class": "tables"})
    for dimension, by_kind in found.by.items():
        if (names := by_kind.get(kind)) is None:
            continue
        table = _table(dimension, names)
        if dimension is Dimension.HOUR:
            details = SubElement(section, "details")
            SubElement(details, "summary").text = "hours as a table"
            details.append(table)
        else:
            tables.append(table)
    return section


def _table(dimension: Dimension, names: NameCounts) -> Element:
    table = Element("table")
    SubElement(table, "caption").text = f"by {dimension.value}"
    body = SubElement(table, "tbody")
    rows = list(_rows(dimension, names))
    greatest = max(count for _, count in rows)
    for name, count in rows:
        row = SubElement(body, "tr", {"style": f"--share:{count / greatest:.4f}"})
        SubElement(row, "th", {"scope": "row"}).text = name
        SubElement(row, "td").text = f"{count:,}"
    return table


def _rows(dimension: Dimension, names: NameCounts) -> Iterator[tuple[str, int]]:
    for name, count in names.shown:
        yield shown_name(dimension, name), count
    if names.other_names:
        yield f"{OTHERS}: {names.other_names:,}", names.others
