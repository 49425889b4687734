"""Dead letters on the dashboard, in a browser: looked at, shown and redriven, over letters that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from playwright.sync_api import Page, expect

from sidecar.api.dlq.bodies import DeadLetterDetailBody, RedriveBody, RedriveRequest
from sidecar.api.messages.listing import HeaderBody
from sidecar.clock import SystemClock
from sidecar.errors import BrokerUnavailable
from tests.browser.conftest import Open, faults, overflow
from tests.browser.staged import HOUR_MS, Live, serving
from tests.unit.api_stage import Letters, letter
from tests.unit.engine.test_view import view_of

HOSTILE: Final = '"><img src=x onerror="document.title=\'owned\'">'

Keep = Callable[[Page, str], None]


class Redriven(Letters):
    """Redrives that are done as soon as they are asked for."""

    def start(self, request: RedriveRequest) -> tuple[RedriveBody, bool]:
        status, _ = super().start(request)
        left = {"would-die-again": {"bad-header": 1}}
        facts = {"state": "done", "dry_run": request.dry_run, "redriven": 2, "read": 3, "left": left}
        return status.model_copy(update=facts), True


def source() -> Live:
    return Live([view_of([SystemClock().wall_ms() + HOUR_MS])], total=1)


def some_letters() -> list[DeadLetterDetailBody]:
    headers = [HeaderBody(name=HOSTILE, value=HOSTILE)]
    return [
        letter(9, headers=headers, died_ms=SystemClock().wall_ms()),
        letter(8, exception=HOSTILE),
        letter(7, reason="bad-header", origin=""),
    ]


def looked(page: Page) -> Page:
    page.get_by_role("button", name="Look", exact=True).click()
    expect(page.locator("#letters tbody tr").first).to_be_visible()
    return page


def test_dead_letters_are_counted_listed_and_shown_when_asked_for(open_page: Open, keep: Keep) -> None:
    letters = Letters(some_letters())
    with serving(source(), letters=letters, token="secret", open_reads=True) as url:
        page = open_page(url)
        expect(page.locator("#total")).to_have_text("1")
        assert letters.asked == [], "nothing reads the DLQ by itself"
        looked(page)
        expect(page.locator("#dlq-said")).to_have_text("3 dead letters of 3 read.")
        expect(page.locator("#dlq-counts tbody tr").first).to_have_text("fatal2")
        expect(page.locator("#letters tbody tr")).to_have_count(3)
        assert faults(page) == []
        keep(page, "dead-letters")
        page.get_by_role("button", name="0-9").click()
        drawer = page.locator("#letter")
        expect(drawer).to_contain_text("FATAL_EXCEPTION")
        expect(drawer.locator(".headers td").first).to_have_text(HOSTILE)
        drawer.get_by_role("button", name="Show key and value").click()
        expect(drawer).to_contain_text("The payload needs the API token.")
        assert faults(page) == []
        page.evaluate("sessionStorage.setItem('retry-sidecar-token', 'secret')")
        drawer.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="0-9").click()
        drawer.get_by_role("button", name="Show key and value").click()
        expect(drawer.locator("pre").last).to_have_text("v")
        assert "owned" not in page.title()


def test_the_filter_and_the_phone(open_page: Open) -> None:
    letters = Letters(some_letters())
    with serving(source(), letters=letters) as url:
        page = open_page(url, phone=True)
        page.get_by_label("Reason").fill("bad-header")
        page.get_by_label("Died").select_option("last day")
        looked(page)
        expect(page.locator("#letters tbody tr")).to_have_count(1)
        assert overflow(page) == 0
    assert letters.asked[-1].reason == ["bad-header"]
    assert letters.asked[-1].died_from is not None


def test_a_redrive_is_previewed_confirmed_and_followed(open_page: Open, keep: Keep) -> None:
    letters = Redriven(some_letters())
    with serving(source(), letters=letters) as url:
        page = looked(open_page(url))
        page.get_by_role("button", name="Redrive these …").click()
        dialog = page.locator("#redrive")
        expect(dialog).to_contain_text("2 messages would be sent, of 3 read.")
        expect(dialog).to_contain_text("Stay on the DLQ, would-die-again: bad-header 1.")
        assert [each.dry_run for each in letters.started] == [True], "nothing is sent yet"
        assert faults(page) == []
        keep(page, "redrive")
        dialog.get_by_role("button", name="Redrive 2 messages").click()
        expect(dialog).to_contain_text("2 messages sent, of 3 read.")
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="0-7").click()
        page.locator("#letter").get_by_role("button", name="Redrive …").click()
        expect(dialog).to_contain_text("Sends dead letter 0-7 to the retry topic again.")
        expect(dialog.get_by_role("button", name="Redrive 2 messages")).to_be_visible()
    assert [each.dry_run for each in letters.started] == [True, False, True]
    assert (letters.started[-1].id, letters.started[-1].reason) == ("0-7", ["bad-header"])


def test_a_dead_letter_is_discarded_with_a_reason_and_taken_back(open_page: Open) -> None:
    letters = Letters(some_letters())
    with serving(source(), letters=letters) as url:
        page = open_page(url)
        looked(page)
        page.get_by_role("button", name="0-9").click()
        drawer = page.locator("#letter")
        drawer.get_by_label("Why it is discarded").fill(HOSTILE)
        drawer.get_by_role("button", name="Discard").click()
        expect(drawer).to_contain_text(f"by 127.0.0.1: {HOSTILE}")
        assert [each.why for each in letters.discarded.values()] == [HOSTILE]
        assert faults(page) == []
        drawer.get_by_role("button", name="Take back").click()
        expect(drawer.get_by_role("button", name="Discard")).to_be_visible()
    assert letters.discarded == {}
    assert "owned" not in page.title()


def test_a_dlq_that_cannot_be_read_says_so(open_page: Open) -> None:
    with serving(source(), letters=Letters(trouble=BrokerUnavailable("no record within 3 s"))) as url:
        page = open_page(url)
        page.get_by_role("button", name="Look", exact=True).click()
        expect(page.locator("#dlq-said")).to_have_text("Not read: no record within 3 s")
