"""Records that Spring Kafka itself writes: its retry-topic feature and its dead-letter recoverer, from Maven."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, send
from tests.integration.sidecars import Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SOURCE = Path(__file__).parent / "spring_kafka"
BACKOFF_MS = 3_000
WAIT_S = 120.0


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the listeners and of Spring Kafka."""
    if not shutil.which("mvn") or not shutil.which("javac"):
        pytest.skip("needs Maven and a JDK 17 in the PATH: apt-get install maven openjdk-17-jdk-headless")
    folder = tmp_path_factory.mktemp("spring")
    copying = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/lib"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(SOURCE / "pom.xml"), *copying], check=True, timeout=280)
    compiling = ["-cp", f"{folder}/lib/*", "-d", f"{folder}/out", str(SOURCE / "Forward.java")]
    subprocess.run(["javac", *compiling], check=True, timeout=120)
    return f"{folder}/out:{folder}/lib/*"


@contextmanager
def listeners(classes: str, stage: Stage, folder: Path) -> Iterator[None]:
    """Run listeners that fail, of the topics `<app>-forwarded` and `<app>-published`."""
    properties = {
        "brokers": stage.bootstrap,
        "forwarded": f"{stage.app_id}-forwarded",
        "published": f"{stage.app_id}-published",
        "retry": stage.input_topic,
        "backoff": str(BACKOFF_MS),
    }
    given = [f"-D{name}={value}" for name, value in properties.items()]
    with (folder / "spring.log").open("wb") as log:
        process = subprocess.Popen(["java", *given, "-cp", classes, "Forward"], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def said(folder: Path) -> str:
    """Return what the listeners have printed."""
    return (folder / "spring.log").read_text(encoding="utf-8")


@pytest.fixture
def topics(stage: Stage) -> Stage:
    for name in ("forwarded", "forwarded-retry", "forwarded-dlt", "published"):
        create_topic(stage.bootstrap, f"{stage.app_id}-{name}", 2)
    return stage


def test_what_the_retry_topic_feature_forwarded_returns_to_its_topic_when_spring_wanted_it(
    classes: str, topics: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    origin = f"{topics.app_id}-forwarded"
    send(topics.bootstrap, origin, Given(b"\xff\0", b"k", [("own", b"1")]))
    with listeners(classes, topics, tmp_path):
        (waiting, *_) = read_committed(topics.bootstrap, [f"{origin}-retry"], WAIT_S, until=bool)
    due_ms = int.from_bytes(waiting.header("retry_topic-backoff-timestamp") or b"", "big")
    assert waiting.header("retry_topic-attempts") == b"\0\0\0\2"
    sidecars.start("one", topics, INPUT_TOPIC=f"{origin}-retry", PROFILES="spring")
    _, back = read_committed(topics.bootstrap, [origin], WAIT_S, until=lambda found: len(found) == 2)
    assert (back.key, back.value, back.header("own")) == (b"k", b"\xff\0", b"1")
    assert back.header("retry_topic-attempts") == b"\0\0\0\2"
    assert back.timestamp_ms >= due_ms


def test_what_a_recoverer_publishes_comes_back_until_its_attempts_are_used_up(
    classes: str, topics: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    origin = f"{topics.app_id}-published"
    sidecars.start(
        "one", topics, PROFILES="native,spring", DELAYS="200ms,200ms,200ms", RETRIABLE_EXCEPTION="java.lang.Illegal*"
    )
    send(topics.bootstrap, origin, Given(b"v", b"k", [("own", b"1")]))
    with listeners(classes, topics, tmp_path):
        (dead,) = read_committed(topics.bootstrap, [topics.dlq_topic], WAIT_S, until=bool)
        eventually(lambda: said(tmp_path).count("other skipped") == 3, WAIT_S, "the other group has read the retries")
    assert said(tmp_path).count("other took") == 1
    came = read_committed(topics.bootstrap, [origin])
    assert [dict(each.headers).get("retry_topic-attempts") for each in came] == [
        None,
        b"\0\0\0\2",
        b"\0\0\0\3",
        b"\0\0\0\4",
    ]
    assert [dict(each.headers).get("retry-group") for each in came] == [None, *[b"spring-publishing"] * 3]
    assert {each.partition for each in came[1:]} == {came[1].partition}
    assert dead.header("retry-dlq-reason") == b"attempts-exhausted"
    assert dead.header("__connect.errors.exception.class.name") == b"java.lang.IllegalStateException"
