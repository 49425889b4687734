"""The dashboard in states that a real group is rarely in: figures, messages and answers are staged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from sidecar.api.messages.listing import HeaderBody
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.engine.group.view import PartitionView
from sidecar.errors import CommandFailed
from tests.browser.conftest import Open, Scheme, faults, overflow
from tests.browser.staged import HOUR_MS, Detailed, Live, a_busy_evening, serving, some_messages
from tests.unit.api.test_api import UNWELL
from tests.unit.api_stage import Desk, Told, message
from tests.unit.engine.test_view import view_of

HOSTILE = '<img src=x onerror="document.title=`owned`"><script>document.title="owned"</script>'
LONG = "a-topic-whose-name-is-as-long-as-kafka-allows." + "x" * 203
Keep = Callable[[Page, str], None]


@pytest.fixture
def now_ms() -> int:
    return SystemClock().wall_ms()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def url(now_ms: int, desk: Desk) -> Iterator[str]:
    """A busy evening, and messages that can be looked at."""
    held = Detailed(
        some_messages(now_ms),
        own=frozenset(range(8)),
        headers=[
            HeaderBody(name="retry-origin-topic", value="orders"),
            HeaderBody(name="bytes", value_base64="/wA=", value=None),
        ],
        key="a2V5",
        value="eyJvcmRlciI6IDE3fQ==",
    )
    with serving(a_busy_evening(now_ms), held, desk) as address:
        yield address


def ready(page: Page) -> Page:
    """Return the page once it shows figures and messages."""
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.locator("#messages tbody tr").first).to_be_visible()
    return page


def open_first(page: Page) -> Locator:
    """Open the first message that is listed."""
    page.locator("#messages tbody button").first.click()
    expect(page.locator("#entry .headers")).to_be_visible()
    return page.locator("#entry")


def give_token(page: Page, text: str) -> None:
    """Enter a token in its dialog."""
    page.get_by_label("Token", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page) -> Locator:
    """Confirm the change that is asked, and return the answer."""
    page.locator("#change-do").click()
    return page.locator("#change-answer")


# How it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_in_the_way_of_people_who_do_not_see_it(
    open_page: Open, url: str, keep: Keep, scheme: Scheme
) -> None:
    page = ready(open_page(url, scheme=scheme))
    keep(page, f"busy-{scheme}")
    assert faults(page) == []
    open_first(page)
    page.get_by_role("button", name="Show key and value").click()
    expect(page.locator("pre").first).to_be_focused()
    assert faults(page) == []
    page.get_by_role("button", name="Reschedule …").click()
    keep(page, f"reschedule-{scheme}")
    assert faults(page) == []


def test_dark_is_as_the_system_says_or_as_chosen_and_stays(open_page: Open, url: str) -> None:
    def paper(page: Page) -> str:
        shown: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return shown

    light, dark = open_page(url), open_page(url, scheme="dark")
    assert paper(light) != paper(dark)
    light.get_by_role("button", name="Theme: auto").click()
    light.get_by_role("button", name="Theme: light").click()
    assert paper(light) == paper(dark)
    light.reload()
    expect(light.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert paper(light) == paper(dark)


def test_a_phone_needs_no_sideways_scrolling_whatever_the_names_are(open_page: Open, now_ms: int, keep: Keep) -> None:
    source = a_busy_evening(now_ms)
    first = source.shown[0]
    names = {LONG: 2_000_000_000, HOSTILE: 7, "..": 3}
    odd = replace(first, owner="i" * 60, by_origin={**names, **first.by_origin}, closed_origins={LONG: ("paused", 1)})
    source.shown = [odd, *source.shown[1:]]
    held = Detailed(
        [message(now_ms + HOUR_MS + at, origin=LONG).model_copy(update={"retry_id": "r" * 256}) for at in range(3)],
        headers=[HeaderBody(name="n" * 300, value="v" * 3_000), HeaderBody(name=HOSTILE, value=HOSTILE)],
    )
    with serving(source, held) as url:
        page = ready(open_page(url, phone=True))
        keep(page, "phone-odd")
        assert overflow(page) == 0
        assert faults(page) == []
        open_first(page)
        assert page.evaluate("document.getElementById('entry').scrollWidth") <= 360
        keep(page, "phone-entry")
        assert page.title() != "owned"


# What it says


def test_what_anybody_may_have_written_is_text(open_page: Open, now_ms: int) -> None:
    view = replace(view_of([now_ms + HOUR_MS], origin=HOSTILE), owner=HOSTILE)
    shown = message(now_ms + HOUR_MS, origin=HOSTILE).model_copy(update={"retry_id": HOSTILE})
    headers = [HeaderBody(name=HOSTILE, value=HOSTILE), HeaderBody(name="javascript:alert(1)", value="\u202edrow")]
    with serving(Live([view], total=1), Detailed([shown], headers=headers, value="PHNjcmlwdD4=")) as url:
        page = ready(open_page(url))
        expect(page.locator("#origins tbody th")).to_have_text(HOSTILE)
        expect(page.locator("#partitions .owner")).to_have_text(HOSTILE)
        entry = open_first(page)
        expect(entry.locator(".headers td").first).to_have_text(HOSTILE)
        entry.get_by_role("button", name="Show key and value").click()
        expect(entry.locator("pre")).to_have_text("<script>")
        assert (
            page.evaluate("document.querySelectorAll('main img, main script, dialog img, dialog script').length") == 0
        )
        assert "owned" not in page.title()


def test_a_partition_that_is_not_known_is_named_with_the_age_of_its_figure(
    open_page: Open, now_ms: int, keep: Keep
) -> None:
    good = view_of([now_ms + HOUR_MS] * 5)
    gone = replace(view_of([now_ms + HOUR_MS] * 4, partition=1), state="unknown", owner="")
    restoring = replace(view_of([], partition=2), state="restoring", restored=0.42, restore_remaining=1_234)
    source = Live([good, gone, restoring], total=3, state=UNWELL, old_ms={1: 95_000})
    with serving(source) as url:
        page = open_page(url)
        notices = page.get_by_role("alert")
        expect(notices).to_contain_text(re.compile(r"Incomplete: partition 1 \(no owner, figure 1 min 3\d s old\)"))
        expect(notices).to_contain_text("not ready: No broker answers at kafka:9092.")
        expect(page.locator("#known")).to_have_text("Incomplete")
        expect(page.locator("#age")).to_have_text(re.compile("oldest figure 1 min"))
        expect(page.locator("#total")).to_have_text("9")
        rows = page.locator("#partitions tbody tr")
        expect(rows.nth(1)).to_contain_text("unknown")
        expect(rows.nth(2)).to_contain_text("42 %, 1,234 records left")
        expect(rows.nth(2).get_by_role("progressbar")).to_have_attribute("value", "0.42")
        assert faults(page) == []
        keep(page, "incomplete")


@pytest.mark.parametrize(
    ("state", "said"),
    [("paused", "All origins have been paused since "), ("stopped", "The group has been stopped since ")],
)
def test_a_group_that_fires_nothing_is_said_to_and_resumed(
    open_page: Open, now_ms: int, desk: Desk, state: str, said: str
) -> None:
    view = replace(view_of([now_ms + HOUR_MS] * 2), closed_origins={"*": (state, now_ms - HOUR_MS)})
    stopped = replace(view_of([], partition=1), state="stopped", reason="a changelog record cannot be read")
    with serving(Live([view, stopped], total=2), desk=desk) as url:
        page = open_page(url)
        expect(page.get_by_role("alert")).to_contain_text(said)
        expect(page.locator("#origins tbody tr")).to_have_count(1)
        expect(page.locator("#origins tbody tr")).to_contain_text(f"{state} with all")
        expect(page.locator("#partitions tbody tr").nth(1)).to_contain_text("a changelog record cannot be read")
        desk.result = Told(Outcome.RESUMED, 2)
        page.get_by_role("button", name="Resume all …").click()
        expect(answered(page)).to_contain_text("Resumed.")
        assert [(kind, target) for kind, target, _ in desk.acted] == [(ControlKind.RESUME, "*")]


def test_charts_have_tables_with_the_same_numbers(open_page: Open, url: str) -> None:
    page = ready(open_page(url))
    chart = page.locator("#hour-charts figure").nth(2)
    expect(chart.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Dead-lettered: \d+; most at \d\d:\d\d: \d+")
    )
    chart.get_by_text("As a table").click()
    expect(chart.locator("tbody tr").first).to_be_visible()
    numbers = [int(text.replace(",", "")) for text in chart.locator("tbody td").all_inner_texts()]
    total = int(chart.locator(".sum").inner_text().replace(",", ""))
    assert sum(numbers) == total > 0


def test_an_instance_that_is_gone_is_said_to_be_and_found_again(open_page: Open, now_ms: int, keep: Keep) -> None:
    source = Live([view_of([now_ms + HOUR_MS] * 3)], total=1)
    with serving(source) as url:
        page = open_page(url)
        expect(page.locator("#total")).to_have_text("3")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_role("alert")).to_contain_text("The page shows the figures of ")
    expect(page.locator("#total")).to_have_text("3")
    expect(page.locator("#known")).to_have_text("Unknown")
    keep(page, "unreachable")
    with serving(Live([view_of([now_ms + HOUR_MS] * 4)], total=1), port=urlsplit(url).port or 0):
        page.get_by_role("button", name="Try now").click()
        expect(page.locator("#total")).to_have_text("4")
        expect(page.locator("#notices")).to_be_empty()


@pytest.mark.parametrize("file", ["app.js", "figures.js", "style.css"])
def test_a_page_whose_file_is_refused_is_loaded_again(open_page: Open, url: str, file: str) -> None:
    page = open_page(url, go=False)
    refused: list[str] = []

    def refuse_once(route: Route, request: Request) -> None:
        if refused:
            route.fallback()
        else:
            refused.append(request.url)
            route.fulfill(status=503, content_type="application/json", body="{}")

    page.route(f"**/{file}", refuse_once)
    page.goto(url)
    with page.expect_navigation():
        pass
    ready(page)
    assert refused == [f"{url}{file}"]


def test_a_hidden_page_requests_nothing(open_page: Open, url: str) -> None:
    page = open_page(url, go=False)
    page.clock.install()
    page.goto(url)
    ready(page)
    asked: list[str] = []
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
    page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", True)
    # Not before: until then the page asks every two seconds.
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(120_000)
    assert asked == []
    with page.expect_request("**/pending"):
        page.evaluate(hide + " document.dispatchEvent(new Event('visibilitychange')); }", False)


def test_a_wrong_clock_of_the_browser_makes_no_figure_look_old(open_page: Open, url: str) -> None:
    page = open_page(url, go=False)
    page.clock.install(time=SystemClock().wall_ms() / 1000 - 3 * 3600)
    page.goto(url)
    ready(page)
    expect(page.locator("#age")).to_have_text("up to date")
    expect(page.locator("#skew")).to_contain_text(re.compile(r"clock is (3 h|2 h 59 min).* ahead of the browser"))


# What it does


def test_a_list_is_narrowed_and_paged(open_page: Open, url: str) -> None:
    page = ready(open_page(url))
    rows = page.locator("#messages tbody tr")
    expect(rows).to_have_count(25)
    page.get_by_role("button", name="Next", exact=True).click()
    expect(page.locator("#page")).to_have_text("Page 2")
    page.get_by_role("button", name="Next", exact=True).click()
    expect(rows).to_have_count(10)
    expect(page.get_by_role("button", name="Next", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(page.locator("#page")).to_have_text("Page 2")
    page.get_by_label("Origin", exact=True).fill("emails")
    page.get_by_label("Due", exact=True).select_option("next hour")
    page.get_by_role("button", name="List").click()
    expect(page.locator("#listed")).to_have_text(re.compile(r"^\d+ messages, as of"))
    assert set(rows.locator("td:nth-child(2)").all_inner_texts()) == {"emails"}
    page.get_by_label("Exception", exact=True).fill("com.acme.*")
    page.get_by_label("Consumer group", exact=True).fill("shop")
    page.get_by_label("Key", exact=True).fill("a b")
    page.get_by_label("Header", exact=True).fill("tenant:acme")
    with page.expect_request("**/pending/messages?*") as asked:
        page.get_by_role("button", name="List").click()
    assert "exception=com.acme.*&group=shop&key=a+b&header=tenant%3Aacme" in asked.value.url
    page.get_by_label("Header", exact=True).fill("tenant")
    page.get_by_role("button", name="List").click()
    expect(page.locator("#listed")).to_contain_text("Not listed: header")
    page.get_by_label("Header", exact=True).fill("")
    page.get_by_label("Origin", exact=True).fill("no such topic!")
    page.get_by_role("button", name="List").click()
    expect(page.locator("#listed")).to_contain_text("Not listed: origin")


def test_an_answer_that_is_late_is_waited_for(open_page: Open, url: str, desk: Desk) -> None:
    desk.result = Told(None, control_id="c 1", missing=(2,))
    page = ready(open_page(url))
    open_first(page).get_by_role("button", name="Cancel …").click()
    answer = answered(page)
    expect(answer).to_contain_text("Not answered yet.")
    expect(answer).to_contain_text("owner of partition 2")
    [control_id] = desk.ids
    assert control_id is not None
    desk.known[control_id] = Told(Outcome.CANCELLED, 1, control_id=control_id)
    expect(answer).to_contain_text("Cancelled: 1 message will not be delivered.")
    assert [kind for kind, _, _ in desk.acted] == [ControlKind.CANCEL]


def test_every_answer_is_said_in_plain_words(open_page: Open, url: str, desk: Desk) -> None:
    page = ready(open_page(url))
    entry = open_first(page)
    answers: list[tuple[Told | Exception, str]] = [
        (Told(Outcome.FIRED, 1), "Fired: 1 message sent to orders."),
        (Told(Outcome.NOT_PENDING), "The message is not pending"),
        (Told(Outcome.ORIGIN_PAUSED), "Its origin is paused or cannot be reached."),
        (Told(Outcome.BAD_REQUEST, detail="it is signed by nobody"), "it is signed by nobody"),
        (CommandFailed("no broker answers"), "no broker answers"),
    ]
    for told, words in answers:
        desk.result = told
        entry.get_by_role("button", name="Fire now …").click()
        expect(answered(page)).to_contain_text(words)
        page.get_by_role("dialog", name="Fire this message now").get_by_role("button", name="Close").click()


def test_nothing_is_done_before_it_is_confirmed(open_page: Open, url: str, desk: Desk) -> None:
    page = ready(open_page(url))
    page.get_by_role("button", name="Pause orders").click()
    expect(page.get_by_role("dialog", name="Pause this origin?")).to_contain_text("Nothing fires to orders")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Pause orders")).to_be_focused()
    page.get_by_role("button", name="Resume webhooks.partner-a").click()
    page.get_by_role("button", name="Back").click()
    assert desk.acted == []


def test_the_token_is_asked_for_sent_and_forgotten_with_the_tab(open_page: Open, now_ms: int) -> None:
    views: list[PartitionView] = [view_of([now_ms + HOUR_MS])]
    held = Detailed([message(now_ms + HOUR_MS)], key="a2V5", value=None)
    desk = Desk()
    with serving(Live(views, total=1), held, desk, token="secret") as url:
        page = open_page(url)
        listed = page.locator("#listed")
        expect(listed).to_contain_text("Not listed: Messages, settings and outcomes need the API_TOKEN")
        for text, answer in (("wrong", "The API token is wrong."), ("secret", "1 message")):
            listed.get_by_role("button", name="Enter the token").click()
            give_token(page, text)
            expect(listed).to_contain_text(answer)
        entry = open_first(ready(page))
        page.evaluate("sessionStorage.clear()")  # the dialog of the message is in front of the button "Forget"
        entry.get_by_role("button", name="Cancel …").click()
        expect(answered(page)).to_contain_text("This needs the API token.")
        assert desk.acted == []
        page.get_by_role("dialog", name="Cancel this message").get_by_role("button", name="Enter the token").click()
        give_token(page, "secret")
        page.get_by_role("dialog", name="Cancel this message").get_by_role("button", name="Close").click()
        entry.get_by_role("button", name="Show key and value").click()
        expect(entry.locator("pre")).to_have_text("key")
        expect(entry).to_contain_text("Value: null")
        entry.get_by_role("button", name="Cancel …").click()
        expect(answered(page)).to_contain_text("Cancelled: 1 message")
        assert "secret" not in str(page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href"))
        fresh = open_page(url)
        expect(fresh.locator("#listed")).to_contain_text("Not listed")
        expect(fresh.get_by_role("button", name="API token", exact=True)).to_be_visible()
