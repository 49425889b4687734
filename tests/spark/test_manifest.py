"""The files beside Spark's checkpoint, on a file system in this process."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import structs
from py4j.protocol import Py4JJavaError

from sidecar import __version__
from sidecar.errors import CommandFailed
from sidecar.spark.manifest import RULES, CheckpointFolder, Former, Kept, Unfinished
from tests.spark.stream import test_partition_step
from tests.spark.stream.test_setup import MANIFEST

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{"a":"b"}}\n{"now_ms":5,"offsets":{"0":7}}'


class Files:
    """Hadoop's file system, as far as it is used."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def open(self, path: Path) -> Any:
        return SimpleNamespace(readAllBytes=path.read_bytes, close=lambda: None)

    def mkdirs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def createAtomic(self, path: Path, overwrites: bool) -> Any:  # noqa: N802 - the name is Spark's
        assert overwrites
        return SimpleNamespace(write=path.write_bytes, close=lambda: None)

    def delete(self, path: Path, recursive: bool) -> None:
        assert recursive
        shutil.rmtree(path)

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
    files = files or Files()
    managers: Any = SimpleNamespace(CheckpointFileManager=SimpleNamespace(create=lambda *_: files))
    for name in ("checkpointing", "streaming", "execution", "sql", "spark"):
        managers = SimpleNamespace(**{name: managers})
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop, spark=managers.spark)))
    state = SimpleNamespace(newHadoopConf=lambda: None)
    session: Any = SimpleNamespace(
        _jvm=jvm,
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: None),
        _jsparkSession=SimpleNamespace(sessionState=lambda: state),
    )
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
    assert (planned[0], planned[2]) == ("v1", '{"now_ms":5,"offsets":{"0":7}}')
    assert msgspec.json.decode(planned[1])["conf"] == {"a": "b"}
    logged(tmp_path, "commits", 5)
    one.plan_empty(3)
    assert one.unfinished() == Unfinished(6, 501), "no instant comes twice"


def test_the_rules_are_kept_without_the_token_and_a_file_that_is_cut_off_is_none(tmp_path: Path) -> None:
    one = folder(tmp_path)
    one.write(MANIFEST)
    assert one.kept() is None
    one.keep(replace(test_partition_step.RULES, api_token="secret"))
    assert one.kept() == Kept(__version__, test_partition_step.RULES)
    file = tmp_path / RULES
    assert b"secret" not in file.read_bytes()
    file.write_bytes(file.read_bytes()[:-9])
    assert one.kept() is None


def test_a_file_system_without_its_jars_is_refused_with_how_to_add_them(tmp_path: Path) -> None:
    thrown = SimpleNamespace(_target_id="o1", getMessage=lambda: 'No FileSystem for scheme "gs"')
    with pytest.raises(CommandFailed, match=r"scheme \"gs\".*Hadoop 3\.5\.0 with"):
        folder(tmp_path, Py4JJavaError("failed", thrown))


def test_a_manifest_names_the_folder_of_its_query_and_where_that_has_read_to(tmp_path: Path) -> None:
    one = folder(tmp_path)
    assert one.read() is None
    one.write(MANIFEST)
    assert one.read() == MANIFEST
    assert (one.query, one.read_to()) == (f"{tmp_path}/query", {})
    logged(tmp_path, "offsets", 3, 'v1\n{"batchTimestampMs":5}\n{"now_ms":5,"offsets":{"0":7,"1":9}}')
    logged(tmp_path, "commits", 3)
    assert one.begun()
    assert one.read_to() == {0: 7, 1: 9}
    other = structs.replace(MANIFEST, query="query-2", former=Former("query", 2))
    one.write(other)
    assert (one.query, one.begun()) == (f"{tmp_path}/query-2", False)
    again = folder(tmp_path)
    assert again.read() == other
    assert again.query == one.query
    again.forget("query")
    assert not (tmp_path / "query").exists()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    files, cancelled = Files(), list[str]()
    thrown = Py4JJavaError("failed", SimpleNamespace(_target_id="o1"))

    def fails(_: bytes) -> None:
        raise thrown

    one = folder(tmp_path, files)
    one.write(MANIFEST)
    stream = SimpleNamespace(write=fails, cancel=lambda: cancelled.append("cancelled"))
    vars(files)["createAtomic"] = lambda *_: stream
    with pytest.raises(Py4JJavaError):
        one.write(structs.replace(MANIFEST, state_partitions=9))
    assert cancelled
    assert folder(tmp_path).read() == MANIFEST
