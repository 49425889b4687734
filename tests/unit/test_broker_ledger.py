"""What the ledger of the broker tests forgives: the messages of one transaction, twice."""

from __future__ import annotations

import pytest

from tests.broker import Read
from tests.integration.ledger import ID, require_one_transaction


def read(name: str, offset: int, partition: int = 0) -> Read:
    return Read("orders", partition, offset, 0, None, None, ((ID, name.encode()),))


ONE = [read("a", 0), read("b", 1), read("c", 2)]
"""A marker follows at offset 3."""
AGAIN = [read("a", 4), read("b", 5)]


def test_messages_of_one_transaction_may_come_twice() -> None:
    require_one_transaction([*ONE, *AGAIN], ["a", "b"])
    require_one_transaction([*ONE, read("d", 0, partition=1), *AGAIN, read("d", 2, partition=1)], ["a", "b", "d"])


def test_messages_of_two_transactions_may_not() -> None:
    with pytest.raises(AssertionError, match="several transactions"):
        require_one_transaction([*ONE, read("d", 4), read("a", 6), read("d", 7)], ["a", "d"])


def test_no_message_may_come_three_times() -> None:
    with pytest.raises(AssertionError, match="more than twice"):
        require_one_transaction([*ONE, *AGAIN, read("a", 7)], ["a", "b"])
