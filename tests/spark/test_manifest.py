"""The files beside Spark's checkpoint, on a file system in this process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JJavaError

from sidecar import __version__
from sidecar.errors import CommandFailed
from sidecar.spark.manifest import RULES, CheckpointFolder, Kept, Unfinished
from tests.spark.stream import test_partition_step

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{"a":"b"}}\n{"retry":{"0":7}}'


class Files:
    """Hadoop's file system, as far as it is used."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def open(self, path: Path) -> Any:
        return SimpleNamespace(readAllBytes=path.read_bytes, close=lambda: None)

    def create(self, path: Path, _overwrite: bool) -> Any:
        path.parent.mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(write=path.write_bytes, close=lambda: None)

    def delete(self, path: Path, _recursive: bool) -> None:
        path.unlink(missing_ok=True)

    def rename(self, path: Path, target: Path) -> None:
        os.rename(path, target)  # noqa: PTH104 - these paths make no others

    def listStatus(self, path: Path) -> list[Any]:  # noqa: N802 - as above
        found = [SimpleNamespace(getName=lambda name=each.name: name) for each in path.iterdir()]
        return [SimpleNamespace(getPath=lambda each=each: each) for each in found]


class FilePath:
    """Makes paths, each of which knows its file system."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __call__(self, *parts: Any) -> Any:
        path = Path(*(str(part) for part in parts))
        return _Located(path, files=self._files)


class _Located(type(Path())):  # type: ignore[misc]  # the class depends on the platform
    def __new__(cls, path: Path, *, files: Any) -> Any:
        made = super().__new__(cls, path)
        made.files = files
        return made

    def getFileSystem(self, _configuration: Any) -> Any:  # noqa: N802 - as above
        if isinstance(self.files, Exception):
            raise self.files
        return self.files


def folder(path: Path, files: Any = None) -> CheckpointFolder:
    hadoop = SimpleNamespace(
        fs=SimpleNamespace(Path=FilePath(files or Files())),
        util=SimpleNamespace(VersionInfo=SimpleNamespace(getVersion=lambda: "3.5.0")),
    )
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    session: Any = SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    return CheckpointFolder(session, str(path))


def logged(path: Path, log: str, batch: int, text: str = "v1\n{}") -> None:
    file = path / "query" / log / str(batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_micro_batch_that_was_planned_and_not_completed_is_unfinished(tmp_path: Path) -> None:
    one = folder(tmp_path)
    assert one.unfinished() is None
    logged(tmp_path, "offsets", 0, OFFSETS % 100)
    assert one.unfinished() == Unfinished(0, 100)
    logged(tmp_path, "commits", 0)
    assert one.unfinished() is None
    for batch in (9, 10):
        logged(tmp_path, "offsets", batch, OFFSETS % (batch * 100))
    logged(tmp_path, "commits", 9)
    assert one.unfinished() == Unfinished(10, 1_000)


def test_a_query_begins_with_a_micro_batch_without_records(tmp_path: Path) -> None:
    one = folder(tmp_path)
    one.plan_empty(500)
    assert one.unfinished() is None, "a new checkpoint begins with one by itself"
    logged(tmp_path, "offsets", 4, OFFSETS % 400)
    logged(tmp_path, "commits", 4)
    one.plan_empty(500)
    assert one.unfinished() == Unfinished(5, 500)
    planned = (tmp_path / "query" / "offsets" / "5").read_text().split("\n")
    assert (planned[0], planned[2]) == ("v1", '{"retry":{"0":7}}')
    assert msgspec.json.decode(planned[1])["conf"] == {"a": "b"}
    logged(tmp_path, "commits", 5)
    one.plan_empty(3)
    assert one.unfinished() == Unfinished(6, 501), "no instant comes twice"


def test_a_first_micro_batch_of_the_java_source_begins_again_where_that_source_had_begun(tmp_path: Path) -> None:
    one = folder(tmp_path)
    assert one.former_starts("retry") == {}
    file = tmp_path / "query" / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b'\0v1\n{"retry":{"0":7,"1":0}}')
    assert one.former_starts("retry") == {0: 7, 1: 0}
    logged(tmp_path, "offsets", 0, OFFSETS % 100)
    logged(tmp_path, "commits", 0)
    assert one.former_starts("retry") == {}, "it goes on behind a micro-batch that was completed"


def test_the_rules_are_kept_without_the_token_and_a_file_that_is_cut_off_is_none(tmp_path: Path) -> None:
    one = folder(tmp_path)
    assert one.kept() is None
    one.keep(replace(test_partition_step.RULES, api_token="secret"))
    assert one.kept() == Kept(__version__, test_partition_step.RULES)
    file = tmp_path / RULES
    assert b"secret" not in file.read_bytes()
    file.write_bytes(file.read_bytes()[:-9])
    assert one.kept() is None


def test_a_file_system_without_its_jars_is_refused_with_how_to_add_them(tmp_path: Path) -> None:
    thrown = SimpleNamespace(_target_id="o1", getMessage=lambda: 'No FileSystem for scheme "s3a"')
    with pytest.raises(CommandFailed, match=r"scheme \"s3a\".*hadoop-aws:3\.5\.0"):
        folder(tmp_path, Py4JJavaError("failed", thrown))
