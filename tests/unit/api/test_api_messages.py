"""Lists and single messages of the group, over instances that share its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.api.messages.listing import MessageBody, Page, Position, merged
from sidecar.errors import StoreFailed
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import ELSEWHERE, Client, Held, Neighbours, detail, message
from tests.unit.engine.test_view import EMPTY, NOW_MS

HERE = "http://10.0.0.1:8080"


class Group:
    """Two instances: `here` owns partitions 0 and 1, `there` 2 and 3."""

    def __init__(self, messages: list[MessageBody]) -> None:
        views = [
            replace(EMPTY, partition=number, owner=f"sidecar-{number // 2}", url=HERE if number < 2 else ELSEWHERE)
            for number in range(4)
        ]
        self.source = Snapshots(views, 4)
        self.here = Held([each for each in messages if each.partition < 2], frozenset({0, 1}))
        self.there = Held([each for each in messages if each.partition >= 2], frozenset({2, 3}))
        self.peers = Neighbours()
        self.peers.clients[ELSEWHERE] = Client(self.source, self.there, token="secret", open_reads=True)
        self.client = Client(self.source, self.here, peers=self.peers, token="secret", open_reads=True)

    def close(self) -> None:
        for each in (self.client, *self.peers.clients.values()):
            each.close()

    def all(self, query: str = "", limit: int = 3) -> list[dict[str, Any]]:
        """Return the messages of all pages."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = self.client.get(f"/pending/messages?limit={limit}{query}{cursor}")
            assert answer.status_code == 200, answer.text
            page = answer.json()
            assert len(page["messages"]) <= limit
            assert page["complete"] is True
            found += page["messages"]
            if page["cursor"] is None:
                return found
            cursor = f"&cursor={page['cursor']}"


MESSAGES = [
    message(NOW_MS + due, partition, offset, origin)
    for offset, (due, partition, origin) in enumerate(
        [
            (5, 0, "a"),
            (5, 2, "a"),
            (5, 1, "b"),
            (9, 3, "a"),
            (1, 2, "b"),
            (7, 0, "a"),
            (5, 2, "b"),
            (8, 1, "a"),
            (5, 0, "b"),
        ]
    )
]
IN_ORDER = sorted(MESSAGES, key=lambda each: each.position)


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(MESSAGES)
    yield made
    made.close()


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 1000])
def test_pages_give_every_message_of_all_instances_once_and_in_due_order(group: Group, limit: int) -> None:
    assert group.all(limit=limit) == [each.model_dump() for each in IN_ORDER]


def test_a_list_can_be_narrowed(group: Group) -> None:
    assert [each["origin"] for each in group.all("&origin=b")] == ["b"] * 4
    assert {each["partition"] for each in group.all("&partition=2")} == {2}
    wanted = [each.id for each in IN_ORDER if NOW_MS + 5 <= each.due_ms < NOW_MS + 8]
    assert [each["id"] for each in group.all(f"&due_from={NOW_MS + 5}&due_to={NOW_MS + 8}")] == wanted


def test_filters_reach_the_other_instances_and_what_they_looked_at_is_added(group: Group) -> None:
    query = "exception=com.acme.%2A&group=shop&key=a%2Fb&header=tenant%3Aacme&header=lang%3Aa%3Ab"
    answer = group.client.get(f"/pending/messages?{query}").json()
    ((_, path),) = group.peers.asked
    assert set(path.partition("?")[2].split("&")) == {*query.split("&"), "limit=100"}
    assert answer["examined"] == len(MESSAGES)


def test_only_the_owner_of_what_is_wanted_is_asked(group: Group) -> None:
    group.all("&partition=1")
    assert group.peers.asked == []
    group.all("&partition=3")
    assert {url for url, _ in group.peers.asked} == {ELSEWHERE}


def test_an_owner_that_does_not_answer_is_named_by_its_partitions(group: Group) -> None:
    group.peers.clients.pop(ELSEWHERE).close()
    answer = group.client.get("/pending/messages").json()
    assert (answer["complete"], answer["missing"], answer["partitions"]) == (False, [2, 3], [0, 1])
    assert [each["partition"] for each in answer["messages"]] == [
        each.partition for each in IN_ORDER if each.partition < 2
    ]


@pytest.mark.parametrize("change", [{"owner": "", "url": None}, {"state": "restoring"}, {"url": None}])
def test_an_unreadable_partition_is_missing(group: Group, change: dict[str, Any]) -> None:
    views = list(group.source.views())
    group.source.shown = [*views[:3], replace(views[3], **change)]
    answer = group.client.get("/pending/messages").json()
    assert (answer["complete"], answer["missing"]) == (False, [3])


def test_a_store_that_cannot_be_read_leaves_the_others(group: Group) -> None:
    group.here.trouble = StoreFailed("the disk is full")
    answer = group.client.get("/pending/messages").json()
    assert (answer["complete"], answer["missing"]) == (False, [0, 1])
    assert {each["partition"] for each in answer["messages"]} == {2, 3}
    assert_problem(group.client.get(f"/pending/messages/{MESSAGES[0].id}"), 503, "partition 0")


def test_an_owner_that_has_just_lost_a_partition_does_not_speak_for_it(group: Group) -> None:
    group.there.own = frozenset({2})
    answer = group.client.get("/pending/messages").json()
    assert (answer["complete"], answer["missing"]) == (False, [3])


def test_a_forwarded_call_is_not_sent_on(group: Group) -> None:
    answer = group.client.get("/pending/messages", headers={"x-retry-sidecar-forwarded": "1"}).json()
    assert (answer["partitions"], answer["missing"]) == ([0, 1], [])
    assert group.peers.asked == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[{}]}', b"\xff", b"null"])
def test_an_answer_that_is_none_is_as_good_as_no_answer(
    group: Group, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(group.peers, "get", lambda *_, **__: (200, body))
    assert group.client.get("/pending/messages").json()["missing"] == [2, 3]
    assert_problem(group.client.get(f"/pending/messages/{MESSAGES[1].id}"), 503, "partition 2")


def test_one_message_is_shown_by_any_instance(group: Group) -> None:
    for each in MESSAGES:
        answer = group.client.get(f"/pending/messages/{each.id}")
        assert answer.status_code == 200
        assert answer.json() == detail(each).model_dump(exclude_unset=True)
        assert not {"key", "value"} & set(answer.json())


def test_a_payload_is_asked_for_by_the_instance_that_is_asked(group: Group) -> None:
    path = f"/pending/messages/{MESSAGES[1].id}"
    group.client.get(path)
    assert group.client.get(f"{path}?payload=true", headers={"authorization": "Bearer secret"}).status_code == 200
    assert group.there.payloads == [False, True]


def test_what_does_not_wait_is_404_wherever_it_would_be(group: Group) -> None:
    for target in ("0-99-1", "2-99-1", "4-0-1", "2147483647-0-0"):
        assert_problem(group.client.get(f"/pending/messages/{target}"), 404, target)


def test_what_is_not_read_yet_may_be_what_is_asked_for(group: Group) -> None:
    views = list(group.source.views())
    views[2] = replace(views[2], lag=1_200, next_input_offset=90)
    group.source.shown = views
    for target in ("2-99-1", "id:other"):
        said = group.client.get(f"/pending/messages/{target}").json()["message"]
        assert said == (
            f"{target} is not among the messages that are read: reading is behind by 1,200 of the retry topic's "
            "partition 2. Ask again when they are read."
        )
    for target in ("2-89-1", "0-99-1"):
        said = group.client.get(f"/pending/messages/{target}").json()["message"]
        assert said == f"{target} is not pending: it has fired, was cancelled, or never existed."


def test_what_is_not_found_at_the_address_of_an_owner_by_another_program_may_wait(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that ended may have left its address to anybody."""
    monkeypatch.setattr(group.peers, "get", lambda *_, **__: (404, b"<h1>Not Found</h1>"))
    assert_problem(group.client.get(f"/pending/messages/{MESSAGES[1].id}"), 503, "does not answer")


def test_the_messages_of_a_retry_id_come_from_all_instances() -> None:
    named = [each.model_copy(update={"retry_id": "a/b ü"}) for each in MESSAGES[:5]]
    group = Group([*named, *MESSAGES[5:]])
    answer = group.client.get("/pending/messages/id:a%2Fb%20%C3%BC").json()
    assert [each["id"] for each in answer["messages"]] == [each.id for each in sorted(named, key=lambda n: n.position)]
    assert (answer["complete"], answer["truncated"], answer["partitions"]) == (True, False, [0, 1, 2, 3])
    assert_problem(group.client.get("/pending/messages/id:other"), 404, "id:other")
    group.peers.clients.pop(ELSEWHERE).close()
    answer = group.client.get("/pending/messages/id:other").json()
    assert (answer["messages"], answer["complete"], answer["missing"]) == ([], False, [2, 3])
    group.close()


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=" + "A" * 40, "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=%C3%BC", "cursor"),
        ("due_from=-1", "due_from"),
        ("due_from=5&due_to=4", "due_from"),
        ("due_to=9223372036854775808", "due_to"),
        ("partition=4", "partition"),
        ("origin=a%20b", "origin"),
        ("orign=a", "orign"),
        ("header=tenant", "header"),
        ("header=:acme", "header"),
        ("&".join(["header=a:b"] * 9), "header"),
        ("exception=" + "x" * 501, "exception"),
        ("group=" + "x" * 501, "group"),
        ("key=" + "x" * 501, "key"),
    ],
)
def test_a_wrong_parameter_of_a_list_is_refused_by_name(group: Group, query: str, part: str) -> None:
    assert_problem(group.client.get(f"/pending/messages?{query}"), 400, part)


def test_nothing_is_listed_before_the_group_is_known(group: Group) -> None:
    group.source.reading = "the status topic has not been read to its end yet"
    for path in ("/pending/messages", f"/pending/messages/{MESSAGES[0].id}", "/origins"):
        assert_problem(group.client.get(path), 503, "status topic")


def test_a_trailing_slash_changes_nothing(group: Group) -> None:
    for path in ("/pending/messages", f"/pending/messages/{MESSAGES[0].id}", "/origins"):
        assert group.client.get(f"{path}/").json() == group.client.get(path).json()


places = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**64 - 1))


@given(places)
def test_a_cursor_is_the_place_that_it_was_made_of(place: Position) -> None:
    assert Position.from_cursor(place.to_cursor()) == place


@given(st.text(max_size=40))
def test_any_other_text_is_no_cursor(text: str) -> None:
    try:
        place = Position.from_cursor(text)
    except ValueError:
        return
    assert place.to_cursor() == text


def test_a_page_goes_only_so_far_as_each_of_its_parts() -> None:
    near = Page([message(1), message(2, 0, 1)], Position(2, 0, 1))
    far = Page([message(1, 1), message(9, 1, 1)], None)
    whole = merged([near, far], 10)
    assert ([each.due_ms for each in whole.messages], whole.reached) == ([1, 1, 2], Position(2, 0, 1))
    assert merged([], 10) == Page([], None)


@pytest.mark.parametrize("path", ["", "?partition=3&origin=a", "/2-1-5", "/id:order-7", "/2-1-5?payload=true"])
def test_messages_that_a_driver_does_not_show_are_not_said_to_be_missing(path: str) -> None:
    """A client must not read the answer as `not pending`, nor wait for an owner that never answers."""
    views = [replace(EMPTY, partition=number, owner="spark-1", url=ELSEWHERE, listable=False) for number in range(4)]
    client = Client(Snapshots(views, 4), Held([], frozenset()))
    answer = client.get(f"/pending/messages{path}")
    client.close()
    assert_problem(answer, 501, "cannot be listed or shown")
