"""The page of `spark report` in a real browser: pictures in both schemes, and names that are nothing but names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sidecar.cli.spark.page import page as render
from sidecar.settings import Settings
from sidecar.spark.jobs.report import HOUR_MS, Dimension, Kind, NameCounts, Report
from tests.browser.conftest import Open, Scheme, faults, overflow

NOW_MS = 1_770_000_000_000
FIRST_MS = NOW_MS // HOUR_MS * HOUR_MS - 72 * HOUR_MS
HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "com.acme." + "Very" * 60 + "LongException",
    "java.net.SocketTimeoutException",
]


def made(folder: Path) -> Path:
    hours = [(str(FIRST_MS + at * HOUR_MS), (at * 7919) % 4_000 + 10) for at in range(72)]
    exceptions = NameCounts([(name, 900 // (at + 1)) for at, name in enumerate(HOSTILE)], 12, 40)
    attempts = NameCounts([("0", 800), ("1", 300), ("2", 90)])
    by = {
        Dimension.REASON: {Kind.DEAD: NameCounts([("attempts-exhausted", 80), ("fatal", 20), ("", 1)])},
        Dimension.ORIGIN: {
            Kind.RETRY: NameCounts([("orders", 1_000), ("payments", 190)]),
            Kind.DEAD: NameCounts([("orders", 101)]),
        },
        Dimension.EXCEPTION: dict.fromkeys(Kind, exceptions),
        Dimension.ATTEMPT: dict.fromkeys(Kind, attempts),
        Dimension.HOUR: {Kind.RETRY: NameCounts(hours), Kind.DEAD: NameCounts(hours[60:61])},
    }
    path = folder / "report.html"
    path.write_text(render(Report({Kind.RETRY: 1_190, Kind.DEAD: 101}, by), Settings(), NOW_MS), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_both_kinds_and_runs_nothing_of_the_names(
    open_page: Open, keep: Callable[[Page, str], None], tmp_path: Path, scheme: Scheme
) -> None:
    page = open_page(f"file://{made(tmp_path)}", scheme=scheme)
    expect(page.locator(".hours canvas")).to_have_count(2)
    expect(page.get_by_text(HOSTILE[0], exact=True)).to_have_count(2)
    assert page.title() == "Retries and dead letters"
    assert not faults(page)
    keep(page, f"spark-report-{scheme}")


def test_the_page_fits_on_a_phone(open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"file://{made(tmp_path)}", phone=True)
    expect(page.locator(".hours canvas")).to_have_count(2)
    assert overflow(page) == 0
