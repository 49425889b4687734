"""The pending messages of a query for the API of its driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sidecar.api.messages.listing import AsOf, MessageDetailBody, Named, Page, Position, Unread, Wanted, merged
from sidecar.api.source import Source
from sidecar.changelog.entry import KEY_BYTES, head
from sidecar.engine.partition import State
from sidecar.engine.selection import NAMED_MAX
from sidecar.errors import StoreFailed
from sidecar.model import TimerId
from sidecar.serving.local_messages import detail_of, message_of
from sidecar.spark.reads.board import Board
from sidecar.spark.reads.questions import FindNamed, FindPending, ListPending, PartitionAnswer, Wish


class QueryEntries:
    """Reads entries; see `sidecar.api.messages.listing.Entries`.

    Args:
        board: Asks the tasks of the query.
        source: Shows who owns which partition.
        url: Returns the address of this driver.
    """

    def __init__(self, board: Board, source: Source, url: Callable[[], str]) -> None:
        self._board = board
        self._source = source
        self._url = url

    def owned(self) -> frozenset[int]:
        """Return the running partitions of the query."""
        if not self._board.listening:
            return frozenset()
        url = self._url()
        return frozenset(
            view.partition
            for view in self._source.views()
            if view.owner and view.url == url and view.state == State.RUNNING
        )

    def page(self, partitions: Collection[int], wanted: Wanted) -> Page:
        """Return the first messages of these partitions, as a micro-batch shows them."""
        wish = ListPending(wanted.selection, wanted.due_from_ms, wanted.due_to_ms, wanted.limit, wanted.after)
        pages = []
        for each in self._ask(wish, partitions):
            messages = [message_of(each.partition, entry, head(entry)) for entry in each.entries]
            reached = None if each.reached is None else Position(*each.reached)
            pages.append(Page(messages, reached, each.examined, AsOf(each.instant_ms, each.batch)))
        return merged(pages, wanted.limit)

    def find(self, timer: TimerId, *, payload: bool) -> MessageDetailBody | None:
        """Return a message by its id."""
        (answer,) = self._ask(FindPending(timer.partition, timer.offset, timer.first_ms), [timer.partition])
        return _detail(answer, answer.entries[0], payload) if answer.entries else None

    def named(self, retry_id: bytes, partitions: Collection[int], *, payload: bool) -> Named:
        """Return the messages of a retry id in due order, at most NAMED_MAX."""
        answers = self._ask(FindNamed(retry_id), partitions)
        found = [(entry[:KEY_BYTES], answer.partition, answer, entry) for answer in answers for entry in answer.entries]
        found.sort(key=lambda each: each[:2])
        messages = [_detail(answer, entry, payload) for _, _, answer, entry in found[:NAMED_MAX]]
        return Named(messages, len(found) > NAMED_MAX or any(answer.truncated for answer in answers))

    def _ask(self, wish: Wish, partitions: Collection[int]) -> Sequence[PartitionAnswer]:
        try:
            return self._board.ask(wish, partitions)
        except StoreFailed as cause:
            raise Unread(str(cause)) from cause


def _detail(answer: PartitionAnswer, entry: bytes, with_payload: bool) -> MessageDetailBody:
    shown = detail_of(answer.partition, entry, with_payload)
    # Set one by one: what is not set is not shown.
    shown.as_of_ms, shown.micro_batch = answer.instant_ms, answer.batch
    return shown
