"""The counts of `spark report` and its page, without Spark."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from sidecar.cli.spark.page import page
from sidecar.cli.spark.report import to_json
from sidecar.contract import DIALECTS
from sidecar.dlq.count import OTHERS
from sidecar.model import Headers, Record
from sidecar.policy import Policy, PolicyConfig
from sidecar.settings import Settings
from sidecar.spark.jobs.job import said_by
from sidecar.spark.jobs.report import HOUR_MS, CountKey, Dimension, Kind, NameCounts, Report, death_of, retry_of
from tests.dead_letters import dead

POLICY = Policy(PolicyConfig(origin_topics=("orders",), droppable=("Boring",), fatal=("Fatal",), delays_ms=(10, 10)))
DIALECTS_OF_ALL = list(DIALECTS.values())
HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</script></td><svg onload=alert(1)>",
    "javascript:alert(1)",
    "&lt;b&gt; ${hashes} $main",
    "\u202eevil\u0007\u0000",
    "x" * 5_000,
]


def record(*headers: tuple[str, bytes | None], timestamp_ms: int = 5 * HOUR_MS + 17) -> Record:
    return Record(1, 2, timestamp_ms, None, None, list(headers))


ORIGIN = ("retry-origin-topic", b"orders")


def test_a_record_that_was_to_wait_is_a_retry_and_no_other_is() -> None:
    late = record(ORIGIN, ("retry-exception", b"Late"), ("retry-attempt", b"1"))
    assert retry_of(late, POLICY, DIALECTS_OF_ALL) == CountKey(Kind.RETRY, "orders", "Late", 1, 5 * HOUR_MS, "")
    for other in (
        record(ORIGIN, ("retry-exception", b"Boring")),
        record(ORIGIN, ("retry-exception", b"Fatal")),
        record(ORIGIN, ("retry-attempt", b"2")),
        record(("retry-origin-topic", b"elsewhere")),
        record(("no", b"origin")),
        record(("retry-control", b"cancel"), ("retry-target", b"3-1-5"), ("retry-control-id", b"c")),
    ):
        assert retry_of(other, POLICY, DIALECTS_OF_ALL) is None


def test_a_dead_letter_counts_by_the_hour_of_its_death() -> None:
    headers = dead([ORIGIN, ("retry-attempt", b"2")])
    assert death_of(record(*headers), DIALECTS_OF_ALL) == CountKey(
        Kind.DEAD, "orders", "sidecar.Fatal", 2, 5 * HOUR_MS, "fatal"
    )
    unknown: Headers | None = None
    strange = Record(0, 0, -1, None, None, unknown)
    assert death_of(strange, DIALECTS_OF_ALL) == CountKey(Kind.DEAD, "", "", None, None, "")


def test_an_error_of_spark_is_shown_without_its_stack_traces() -> None:
    text = (
        "An error occurred while calling o186.parquet.\n"
        ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "nosuch"\n'
        "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3586)\n"
        "\t... 12 more\n"
    )
    assert said_by(text) == 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "nosuch"'


def found(names: list[str]) -> Report:
    counted = [(name, 100 - at) for at, name in enumerate(names)]
    hours = NameCounts([("", 1), (str(5 * HOUR_MS), 7), (str(9_007_199_254_740_000_000), 2)])
    by = {
        Dimension.REASON: {Kind.DEAD: NameCounts(counted, 3, 44)},
        Dimension.ORIGIN: {Kind.RETRY: NameCounts(counted), Kind.DEAD: NameCounts(counted)},
        Dimension.HOUR: {Kind.RETRY: hours, Kind.DEAD: hours},
    }
    return Report({Kind.RETRY: 1_000, Kind.DEAD: 10}, by)


class Seen(HTMLParser):
    """Elements and attributes of a page, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_no_name_becomes_more_than_text_on_the_page() -> None:
    hostile, harmless = (Seen(page(found(names), Settings(), 0)) for names in (HOSTILE, ["x"] * len(HOSTILE)))
    assert hostile.elements == harmless.elements
    assert hostile.attributes == harmless.attributes
    assert {"img", "svg"}.isdisjoint(hostile.elements)
    assert not [name for name in hostile.attributes if name.startswith("on")]
    for name in HOSTILE[:5]:
        assert name in hostile.texts, "all of it can be read"
    assert "\\u202eevil\\x07\\x00" in hostile.texts


def test_the_page_asks_for_nothing_and_lets_only_its_own_scripts_run() -> None:
    text = page(found(HOSTILE), Settings(input_topic="<b>retry"), 6 * HOUR_MS)
    (allowed,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src( 'sha256-[\w+/=]{44}'){2}", allowed)
    assert {"link", "iframe", "base", "form"}.isdisjoint(Seen(text).elements)
    assert {"src", "href"}.isdisjoint(Seen(text).attributes)
    assert Seen(text).elements.count("script") == 3, "two and their numbers"
    (numbers,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(numbers)[0] == {
        "kind": "retry",
        "hours": [5 * 3600],
        "counts": [7],
    }, "nobody can draw an hour far ahead; the table has it"


def test_what_is_not_shown_is_said_and_counted() -> None:
    text = page(found(["a"]), Settings(), 0)
    assert f"{OTHERS}: 3" in text
    body = to_json(found(["a"]), Settings())
    assert body["dead-letter"]["by_reason"] == {
        "names": [{"name": "a", "count": 100}],
        "other_names": 3,
        "others": 44,
    }
    assert "by_reason" not in body["retry"]
    assert [each["name"] for each in body["retry"]["by_hour"]["names"]] == ["", "1970-01-01T05:00Z", ""]


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_of_which_there_is_nothing_has_no_pictures(kind: Kind) -> None:
    only = Report(
        {kind: 5}, {Dimension.ORIGIN: {kind: NameCounts([("a", 5)])}, Dimension.HOUR: {kind: NameCounts([("0", 5)])}}
    )
    text = page(only, Settings(), 0)
    assert re.findall(r'id="hours-([a-z-]+)"', text) == [kind.value]
    nothing = page(Report({}, {}), Settings(), 0)
    assert "0 on retry" in nothing
