"""The table of differences is that of the list, and each difference is shown by a test or a request."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT
from tests.spark.differences import BEGIN, DIFFERENCES, END, PAGE, Difference, page
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api_stage import Client


def test_the_page_shows_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert text == page(), "run: python -m tests.docs"


@pytest.mark.parametrize("difference", [each for each in DIFFERENCES if each.test], ids=lambda each: each.name)
def test_the_test_of_a_difference_is_there(difference: Difference) -> None:
    file, _, name = difference.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), difference.test


@pytest.mark.parametrize("difference", [each for each in DIFFERENCES if each.refused], ids=lambda each: each.name)
def test_what_a_driver_refuses_it_refuses_with_the_status_and_reason_of_the_table(difference: Difference) -> None:
    refused = difference.refused
    assert refused is not None
    client = Client(Snapshots([], 4), reload=None)
    try:
        assert_problem(client.request(refused.method, refused.path), refused.status, refused.reason)
    finally:
        client.close()
