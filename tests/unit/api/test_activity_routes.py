"""The histogram of due times, the last hour and the partitions by HTTP, and the dashboard's files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.group.activity import MINUTE_MS, Activity, Minute
from sidecar.engine.group.histogram import RANGES, histograms
from sidecar.wheel.geometry import level_of, slot_end_ms, slot_of, slot_start_ms
from tests.unit.api.test_api import Client, Snapshots, assert_problem
from tests.unit.engine.test_view import EMPTY, NOW_MS, view_of

ROOT = Path(__file__).parents[3]
DAY_MS = 86_400_000

delays = st.lists(st.integers(0, 3 * DAY_MS) | st.integers(0, 90_000) | st.integers(0, 2 * 3_600_000), max_size=200)


@pytest.fixture
def source() -> Snapshots:
    hour = Activity().plus(NOW_MS, Minute(5, 1, 2)).plus(NOW_MS - 3 * MINUTE_MS, Minute(7))
    first = replace(view_of([NOW_MS + 3_000]), activity=hour)
    second = replace(view_of([NOW_MS + 90_000] * 2, partition=1, origin="mail"), activity=hour, lag=None)
    return Snapshots([second, first])


@pytest.fixture
def client(source: Snapshots) -> Iterator[Client]:
    with Client(source) as client:
        yield client


# Histogram


@given(delays, st.integers(1, 3))
def test_no_message_is_lost_between_the_bars(delays_ms: list[int], partitions: int) -> None:
    views = [
        view_of([NOW_MS + delay for delay in delays_ms[number::partitions]], partition=number)
        for number in range(partitions)
    ]
    for name, bars in histograms(views, NOW_MS).items():
        before, counts, after = bars.rounded()
        assert before + sum(counts) + after == len(delays_ms), name
        assert min([before, after, *counts]) >= 0


@given(delays)
def test_each_bar_is_right_up_to_the_slots_that_reach_into_it(delays_ms: list[int]) -> None:
    dues = [NOW_MS + delay for delay in delays_ms]
    for bars in histograms([view_of(dues)], NOW_MS).values():
        for at, shown in enumerate(bars.counts):
            start, end = bars.from_ms + at * bars.bar_ms, bars.from_ms + (at + 1) * bars.bar_ms
            inside = [due for due in dues if start <= due < end]
            near = [due for due in dues if _slot(due)[0] < end and _slot(due)[1] > start]
            sure = [due for due in inside if start <= _slot(due)[0] and _slot(due)[1] <= end]
            assert len(sure) - 1e-6 <= shown <= len(near) + 1e-6


def _slot(due_ms: int) -> tuple[int, int]:
    level = level_of(due_ms, NOW_MS)
    slot = slot_of(due_ms, level)
    return slot_start_ms(slot, level), slot_end_ms(slot, level)


def test_what_was_stored_within_the_minute_is_shown_to_the_bar() -> None:
    dues = [NOW_MS // 1000 * 1000 + 1000 * second + 10 for second in (1, 2, 3, 3, 40)]
    _, counts, after = histograms([view_of(dues, stored_ms=NOW_MS)], NOW_MS)["1m"].rounded()
    assert {at: count for at, count in enumerate(counts) if count} == {0: 1, 1: 3, 20: 1}
    assert after == 0


def test_what_should_have_fired_stands_before_the_bars() -> None:
    view = replace(view_of([NOW_MS - 30_000] * 4, stored_ms=NOW_MS - 60_000), watermark_ms=NOW_MS - 40_000)
    assert histograms([view], NOW_MS)["1m"].rounded()[0] == 4


def test_the_histogram_is_answered_for_every_span(client: Client) -> None:
    body = client.get("/pending/histogram").json()
    assert (body["from_ms"], body["before"], body["complete"]) == (NOW_MS // 1000 * 1000, 0, True)
    assert [(each["span"], each["bar_ms"], len(each["counts"])) for each in body["spans"]] == [*RANGES]
    assert [sum(each["counts"]) + each["after"] for each in body["spans"]] == [3, 3, 3]
    assert sum(body["spans"][1]["counts"]) == 3


# Last hour and partitions


def test_the_last_hour_is_that_of_all_partitions(client: Client) -> None:
    body = client.get("/activity").json()
    assert body["from_ms"] == (NOW_MS // MINUTE_MS - 59) * MINUTE_MS
    assert (body["minute_ms"], body["late_after_ms"]) == (60_000, 1_000)
    assert body["fired"] == [*[0] * 56, 14, 0, 0, 10]
    assert (body["dead_lettered"][-1], body["late"][-1]) == (2, 4)


def test_partitions_without_an_hour_count_as_idle() -> None:
    with Client(Snapshots([EMPTY])) as client:
        assert sum(client.get("/activity").json()["fired"]) == 0


def test_partitions_are_listed_in_order_with_what_is_not_known(client: Client) -> None:
    first, second = client.get("/partitions").json()["partitions"]
    assert (first["partition"], first["pending"], first["lag"], first["next_due_ms"]) == (0, 1, 0, NOW_MS + 3_000)
    assert (second["partition"], second["pending"], second["lag"]) == (1, 2, None)


@pytest.mark.parametrize("path", ["/pending/histogram", "/activity", "/partitions"])
def test_nothing_is_guessed_and_no_parameter_is_ignored(client: Client, source: Snapshots, path: str) -> None:
    assert_problem(client.get(f"{path}?origin=orders"), 400, "origin")
    source.reading = "the status topic has not been read to its end yet"
    assert_problem(client.get(path), 503, source.reading)


# The dashboard's files


def test_the_page_is_found_with_and_without_its_slash(client: Client) -> None:
    page = client.get("/ui/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    moved = client.get("/ui")
    assert (moved.status_code, moved.headers["location"]) == (307, "ui/")


def test_the_page_may_load_nothing_from_elsewhere_and_run_nothing_inline(client: Client) -> None:
    page = client.get("/ui/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    files = [name for name in _names() if not name.startswith("uplot/")]
    texts = {name: client.get(f"/ui/{name}").text for name in files}
    assert not [name for name, text in texts.items() if "innerHTML" in text or "eval(" in text]
    assert not [name for name, text in texts.items() if name != "icon.svg" and "https://" in text]


def test_files_are_revalidated_and_sent_only_when_they_changed(client: Client) -> None:
    first = client.get("/ui/app.js")
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    again = client.get("/ui/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/pending").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/ui/nothing.js", "/ui/../app.py", "/ui/..%2Fapp.py", "/ui/%2e%2e/app.py", "/ui/uplot"]
)
def test_only_the_pages_own_files_are_there(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_chart_library_comes_with_its_licence(client: Client) -> None:
    assert "MIT" in client.get("/ui/uplot/LICENSE").text
    assert "uPlot" in client.get("/ui/uplot/uPlot.iife.min.js").text


def test_what_is_installed_has_the_dashboard(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "SIDECAR_HOT": "skip"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {f"sidecar/api/static/{name}" for name in _names()} <= packed


def _names() -> list[str]:
    folder = Path(str(resources.files("sidecar.api") / "static"))
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
