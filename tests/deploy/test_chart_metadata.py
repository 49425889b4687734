"""What the charts say of themselves, and the addresses that they lead to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.charts import APPLICATION, CASES, LIBRARY, Helm
from tests.deploy.tools import REPOSITORY
from tests.docs.release import PROJECTS, project

PROJECT = project(PROJECTS[0])
URLS: dict[str, str] = PROJECT["urls"]
MONITORING = next(path for path in CASES if path.stem == "monitoring-values")

both = pytest.mark.parametrize("chart", [APPLICATION, LIBRARY], ids=lambda path: path.name)


def metadata(chart: Path) -> dict[str, Any]:
    """Return Chart.yaml."""
    read: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    return read


@both
def test_a_chart_names_the_addresses_of_the_project(chart: Path) -> None:
    said = metadata(chart)
    assert (said["home"], said["sources"]) == (URLS["Documentation"], [URLS["Source"]])
    links = yaml.safe_load(said["annotations"]["artifacthub.io/links"])
    assert {each["url"] for each in links} == {URLS["Documentation"], URLS["Changelog"], URLS["Issues"]}
    assert said["annotations"]["artifacthub.io/license"] == PROJECT["license"]


@both
def test_the_icon_is_a_file_of_the_repository(chart: Path) -> None:
    icon = urlsplit(metadata(chart)["icon"])
    owner_and_name, _, path = icon.path.removeprefix("/").partition("/main/")
    assert URLS["Source"].endswith(f"/{owner_and_name}")
    assert "<svg" in (REPOSITORY / path).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_an_alert_leads_to_its_section_of_this_versions_runbook(helm: Helm) -> None:
    rule = helm.render(APPLICATION, MONITORING, values=["prometheusRule.runbookUrl="]).one("PrometheusRule")
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert len(alerts) > 5
    place = f"{URLS['Source']}/blob/v{PROJECT['version']}/"
    for each in alerts:
        url, _, anchor = each["annotations"]["runbook_url"].partition("#")
        assert url.startswith(place)
        assert anchor in anchors(REPOSITORY / url.removeprefix(place))


def test_a_runbook_of_ones_own_gets_the_anchors(helm: Helm) -> None:
    rule = helm.render(APPLICATION, MONITORING).one("PrometheusRule")
    urls = [each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]]
    assert all(url.startswith("https://wiki.example.com/retry-sidecar#retrysidecar") for url in urls)
