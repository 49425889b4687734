"""The dashboard of a real sidecar on a real broker: what it shows is what the API says, and what it does is done."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.broker import create_topic, read_committed
from tests.browser.conftest import Open, faults, overflow
from tests.integration.messages import Given, Sent, now_ms, send
from tests.integration.sidecars import Sidecar, Sidecars, Stage, set_stage
from tests.waiting import eventually

HOUR_MS: Final = 3_600_000
PENDING: Final = 3_000
FIRED: Final = 40
DEAD: Final = 3
HOSTILE: Final = '"><img src=x onerror="document.title=1">'
API: Final = ("-m", "sidecar", "api")

pytestmark = pytest.mark.broker


class Group:
    """An instance, and a process that owns nothing and serves the page."""

    def __init__(self, stage: Stage, sidecars: Sidecars) -> None:
        self.stage = stage
        self.other = f"{stage.app_id}-payments"
        self.one = sidecars.make("one", stage)
        self.api: Sidecar = sidecars.make("api", stage)
        self.one.start()
        self.api.start(API)
        self.one.await_ready()
        self.api.await_ready()
        self.sent = self._fill()

    def _fill(self) -> list[Sent]:
        """Send what waits, what fires at once, and what cannot be read."""
        due = [b"%d" % (now_ms() + HOUR_MS + at * 1_000) for at in range(PENDING)]
        origins = (self.stage.origin.encode(), self.other.encode())
        waits = [
            Given(
                b'{"order": %d}' % at,
                b"k",
                [("retry-origin-topic", origins[at % 3 == 0]), ("retry-due-ms", due[at])],
                at % 4,
            )
            for at in range(PENDING)
        ]
        fires = [
            Given(b"v", None, [("retry-origin-topic", origins[0]), ("retry-delay-ms", b"0")], at % 4)
            for at in range(FIRED)
        ]
        dead = [Given(b"v", None, [("not", b"readable")]) for _ in range(DEAD)]
        sent = send(self.stage.bootstrap, self.stage.input_topic, *waits, *fires, *dead)
        eventually(lambda: self.get("/pending")["total"] == PENDING, 60, "all that waits is known")
        return sent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.api.port}/ui/"

    def put(self, *, retry_id: str, header: str = "plain") -> str:
        """Send a message that waits and return its timer id."""
        due_ms = now_ms() + HOUR_MS
        headers: list[tuple[str, bytes | None]] = [
            ("retry-origin-topic", self.stage.origin.encode()),
            ("retry-due-ms", b"%d" % due_ms),
            ("retry-id", retry_id.encode()),
            (header, header.encode()),
        ]
        (sent,) = send(self.stage.bootstrap, self.stage.input_topic, Given(b'{"order": 17}', b"key-17", headers, 1))
        timer = f"1-{sent.offset}-{due_ms}"
        eventually(lambda: self.status(timer) == 200, 30, f"{timer} waits")
        return timer

    def ask(self, path: str) -> tuple[int, Any]:
        """Return status and body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self.ask(path)[1]

    def status(self, timer: str) -> int:
        return self.ask(f"/pending/messages/{timer}")[0]


@pytest.fixture(scope="module")
def group(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    stage = set_stage(bootstrap, 4)
    create_topic(bootstrap, f"{stage.app_id}-payments")
    sidecars = Sidecars(tmp_path_factory.mktemp("dashboard"))
    try:
        yield Group(stage, sidecars)
    finally:
        sidecars.end()


def number(text: str) -> int:
    return int(text.replace(",", ""))


def find(page: Page, target: str) -> None:
    """Search by keyboard alone, again if its owner does not answer in time, and return when the message is shown."""

    def is_shown() -> bool:
        page.get_by_label("Timer id or retry id").focus()
        page.keyboard.press("Control+A")
        page.keyboard.type(target)
        page.keyboard.press("Enter")
        try:
            expect(page.locator("#entry .actions")).to_be_visible(timeout=10_000)
        except AssertionError:
            return False
        return True

    eventually(is_shown, 60, f"{target} is shown")


def press(page: Page, name: str) -> None:
    """Go to a button with the Tab key alone and press it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.closest('button')?.textContent ?? ''")
        if re.fullmatch(name, focused):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"no {name} is reached by Tab")


def test_what_is_shown_is_what_the_api_says(group: Group, open_page: Open) -> None:
    page = open_page(group.url.removesuffix("ui/"))
    assert page.url == group.url
    expect(page.locator("#total")).to_have_text(f"{PENDING:,}")
    expect(page.locator("#known")).to_have_text("All 4 partitions")
    pending = group.get("/pending")
    rows = page.locator("#origins tbody tr")
    shown = {row.locator("th").inner_text(): number(row.locator("td span").first.inner_text()) for row in rows.all()}
    assert shown == pending["by_origin"]
    partitions = page.locator("#partitions tbody tr")
    assert [number(row.locator("td").nth(2).inner_text()) for row in partitions.all()] == [
        each["pending"] for each in pending["partitions"]
    ]
    day = page.locator("#due-charts figure").nth(2).locator(".sum")
    expect(day).to_have_text(f"{PENDING:,}")
    hour = page.locator("#hour-charts .sum")
    expect(hour.nth(0)).to_have_text(str(FIRED))
    expect(hour.nth(2)).to_have_text(str(DEAD))
    assert sum(group.get("/activity")["fired"]) == FIRED
    expect(page.locator("#messages tbody tr")).to_have_count(25)
    assert faults(page) == []


def test_a_message_is_found_shown_and_cancelled_with_the_keyboard_alone(group: Group, open_page: Open) -> None:
    timer = group.put(retry_id="order 4711/ä", header=HOSTILE)
    page = open_page(group.url)
    find(page, "order 4711/ä")
    entry = page.locator("#entry")
    expect(entry.get_by_role("cell", name=HOSTILE, exact=True)).to_be_visible()
    expect(entry).to_contain_text(timer)
    press(page, "Show key and value")
    expect(entry.locator("pre").last).to_have_text('{"order": 17}')
    page.keyboard.press("Escape")
    expect(page.get_by_label("Timer id or retry id")).to_be_focused()
    find(page, timer)
    press(page, "Cancel …")
    press(page, "Cancel the message")
    expect(page.locator("#change-answer")).to_contain_text("Cancelled: 1 message will not be delivered.")
    page.keyboard.press("Enter")
    expect(entry).to_contain_text("is not pending: it has fired, was cancelled, or never existed")
    eventually(lambda: group.status(timer) == 404, 30, "it is gone")


def test_a_message_is_rescheduled(group: Group, open_page: Open) -> None:
    timer = group.put(retry_id="later")
    page = open_page(group.url)
    find(page, timer)
    press(page, "Reschedule …")
    expect(page.get_by_label("in 10 minutes")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    press(page, "Reschedule")
    expect(page.locator("#change-answer")).to_contain_text("Rescheduled: 1 message.")

    def far() -> bool:
        status, shown = group.ask(f"/pending/messages/{timer}")
        return status == 200 and abs(shown["due_ms"] - now_ms() - 24 * HOUR_MS) < 120_000

    # An outcome can be read a moment before the owner shows it.
    eventually(far, 30, "it is due in a day")
    expect(page.locator("#entry")).to_contain_text("First due")


def test_all_of_a_retry_id_are_fired_to_their_origin(group: Group, open_page: Open) -> None:
    for _ in range(2):
        group.put(retry_id="twin", header="fired-by-hand")
    page = open_page(group.url, phone=True)
    find(page, "id:twin")
    expect(page.locator("#entry")).to_contain_text("2 messages have this id")
    assert overflow(page) == 0
    press(page, "Fire now …")
    press(page, "Fire now")
    expect(page.locator("#change-answer")).to_contain_text(f"Fired: 2 messages sent to {group.stage.origin}.")

    def by_hand(records: list[Any]) -> bool:
        return sum(any(name == "fired-by-hand" for name, _ in each.headers) for each in records) == 2

    read_committed(group.stage.bootstrap, [group.stage.origin], until=by_hand)


def test_an_origin_is_paused_and_resumed(group: Group, open_page: Open) -> None:
    page = open_page(group.url)
    row = page.locator("#origins tbody tr", has_text=group.other)
    row.get_by_role("button", name=f"Pause {group.other}").focus()
    page.keyboard.press("Enter")
    press(page, "Pause")
    expect(page.locator("#change-answer")).to_contain_text(f"Paused: {PENDING // 3:,} messages pending.")
    page.keyboard.press("Escape")
    expect(row).to_contain_text("paused")
    assert {each["origin"]: each["state"] for each in group.get("/origins")["origins"]}[group.other] == "paused"
    resume = row.get_by_role("button", name=f"Resume {group.other}")
    expect(resume).to_be_focused()
    page.keyboard.press("Enter")
    press(page, "Resume")
    expect(page.locator("#change-answer")).to_contain_text("Resumed")
    page.keyboard.press("Escape")
    expect(row).to_contain_text("open")


def test_the_last_hour_goes_on_after_a_restart(group: Group, open_page: Open) -> None:
    before = sum(group.get("/activity")["fired"])
    assert before >= FIRED
    group.one.stop()
    group.one.start()
    group.one.await_ready()

    def went_on() -> bool:
        body = group.get("/activity")
        return body["complete"] is True and sum(body["fired"]) == before

    eventually(went_on, 60, "the hour of the former owner is there")
    send(
        group.stage.bootstrap,
        group.stage.input_topic,
        *[Given(b"v", None, [("retry-origin-topic", group.stage.origin.encode()), ("retry-delay-ms", b"0")])] * 5,
    )
    eventually(lambda: sum(group.get("/activity")["fired"]) == before + 5, 60, "what fired since is added")
    page = open_page(group.url)
    expect(page.locator("#hour-charts .sum").first).to_have_text(str(before + 5))
