"""The verdict of the soak of the Spark engine: what grows under a steady load is named, what comes and goes is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.figures import grown, growth, sample


def verdict(**figures: Callable[[int], float]) -> list[str]:
    """Return what has grown over 90 looks at figures."""
    return grown(growth([{name: each(at) for name, each in figures.items()} for at in range(90)]))


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("jvm.open_files", lambda at: 40 + at),
        ("jvm.threads", lambda at: 60 + at),
        ("workers.memory_mib", lambda at: 300 + 4 * at),
        ("checkpoint_files", lambda at: 200 + 9 * at),
    ],
)
def test_what_grows_with_time_is_named(name: str, each: Callable[[int], float]) -> None:
    assert verdict(**{name: each, "driver.open_files": lambda _: 30}) == [name]


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("jvm.open_files", lambda at: 40 + 20 * (at % 3)),
        ("jvm.memory_mib", lambda at: min(900, 300 + 40 * at)),
        ("checkpoint_files", lambda at: 200 + 12 * (at % 12)),
        ("workers.open_files", lambda at: 500 if at == 80 else 40),
    ],
)
def test_what_warms_up_and_what_comes_and_goes_is_not_named(name: str, each: Callable[[int], float]) -> None:
    assert verdict(**{name: each}) == []


def test_a_process_and_a_folder_are_counted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").touch()
    found = sample(os.getpid(), tmp_path)
    assert found["checkpoint_files"] == 1
    assert min(found["driver.open_files"], found["driver.threads"], found["driver.memory_mib"]) >= 1
