"""The generated files with their text; a test compares them with the files in the repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy import chart_readme, chart_schema, dashboard, topics

ROOT: Final = Path(__file__).resolve().parent
APPLICATION: Final = ROOT / "helm" / "retry-sidecar"
LIBRARY: Final = ROOT / "helm" / "retry-sidecar-lib"
DASHBOARD: Final = ROOT / "grafana" / "retry-sidecar.json"


def generated() -> Mapping[Path, str]:
    """Return path -> text."""
    return {
        APPLICATION / "values.schema.json": chart_schema.application(),
        LIBRARY / "values.schema.json": chart_schema.library(),
        **{chart / "README.md": chart_readme.renewed(chart) for chart in (APPLICATION, LIBRARY)},
        DASHBOARD: dashboard.text(),
        APPLICATION / "files" / "topics.json": topics.text(),
    }
