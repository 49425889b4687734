"""Rows by offset: the timers that were removed, and the stored dues of moved ones.

A page has the rows of 4,096 offsets, a group says which of 256 pages there are, and Meta which groups. Each step
removes the pages of one group, and the rows of one page, that the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final

from sidecar.changelog.codec import REMOVED, removed_key
from sidecar.changelog.entry import decode_offset, due_ms_of, offset_of
from sidecar.engine.rows import BEHIND_PARTITION, KIND, LEADING_OFFSET, decode_due
from sidecar.model import StoredOffset
from sidecar.spark.state.entries import (
    GROUP,
    GROUP_SHIFT,
    PAGE,
    PAGE_SHIFT,
    Meta,
    Page,
    PageGroup,
    StateEntries,
    encode,
    page_group_state_key,
    page_state_key,
)

PAGED: Final = frozenset({b"v", b"o"})
"""The kinds of rows that are kept here."""


class Pages:
    """The rows of one partition.

    Args:
        state: Entries of the partition.
        meta: Position and groups of the partition.
    """

    def __init__(self, state: StateEntries, meta: Meta) -> None:
        self._state = state
        self._meta = meta
        self._groups: dict[int, PageGroup] = {}
        self._pages: dict[int, Page] = {}
        self._changed_groups: set[int] = set()
        self._changed_pages: set[int] = set()

    def read_ahead(self, rows: Iterable[bytes]) -> None:
        """Read what the writes of these rows need."""
        pages = {_page_of(row) for row in rows}
        self._state.fetch(self._group_keys(pages))
        self._state.fetch(self._page_keys(pages))

    def swept_group(self) -> Iterator[bytes]:
        """Yield the key of the group that `tidy` begins with."""
        return self._group_keys({self._meta.pages_swept})

    def swept_page(self) -> Iterator[bytes]:
        """Yield the key of the page that `tidy` begins with."""
        return self._page_keys({self._meta.pages_swept})

    def _group_keys(self, pages: Set[int]) -> Iterator[bytes]:
        numbers = {page >> GROUP_SHIFT for page in pages} & self._meta.groups.keys() - self._groups.keys()
        return (page_group_state_key(number) for number in sorted(numbers))

    def _page_keys(self, pages: Set[int]) -> Iterator[bytes]:
        unread = sorted(pages - self._pages.keys())
        return (page_state_key(page) for page in unread if page in self._group(page >> GROUP_SHIFT))

    def get(self, row: bytes) -> bytes | None:
        """Return a row, None when there is none."""
        page = _page_of(row)
        return self._page(page).get(row) if page in self._group(page >> GROUP_SHIFT) else None

    def put(self, row: bytes, value: bytes | None) -> None:
        """Write a row; None deletes it."""
        page = _page_of(row)
        group = self._group(page >> GROUP_SHIFT)
        if value is None:
            if page in group and self._page(page).pop(row, None) is not None:
                self._changed_pages.add(page)
            return
        if page not in group:
            self._pages[page] = {}
        self._page(page)[row] = value
        self._changed_pages.add(page)
        self._matters(page, max(group.get(page, 0), _until_ms(row, value)))

    def tidy(self) -> None:
        """Remove what the watermark has passed from the next page."""
        if not self._meta.groups:
            return
        swept = self._meta.pages_swept
        number = min((each for each in self._meta.groups if each >= swept >> GROUP_SHIFT), default=None)
        if number is None:
            number, swept = min(self._meta.groups), 0
        group, watermark_ms = self._group(number), self._meta.checkpoint.watermark_ms
        for page in [page for page, until_ms in group.items() if until_ms < watermark_ms]:
            self._drop(page)
        following = min((each for each in group if each >= swept), default=None)
        if following is None:
            self._meta.pages_swept = number + 1 << GROUP_SHIFT
        else:
            self._meta.pages_swept = following + 1
            self._clean(following, watermark_ms)

    def save(self) -> None:
        """Write what changed."""
        for page in self._changed_pages:
            self._state.put(page_state_key(page), encode(self._pages[page]))
        for number in self._changed_groups:
            if group := self._groups[number]:
                self._state.put(page_group_state_key(number), encode(group))
                self._meta.groups[number] = max(group.values())
            else:
                self._state.remove(page_group_state_key(number))
                self._meta.groups.pop(number, None)
        self._changed_pages.clear()
        self._changed_groups.clear()

    def _matters(self, page: int, until_ms: int) -> None:
        number = page >> GROUP_SHIFT
        group = self._group(number)
        if group.get(page) != until_ms:
            group[page] = until_ms
            self._meta.groups[number] = max(self._meta.groups.get(number, 0), until_ms)
            self._changed_groups.add(number)

    def _clean(self, page: int, watermark_ms: int) -> None:
        rows = self._page(page)
        gone = [row for row, value in rows.items() if _until_ms(row, value) < watermark_ms]
        for row in gone:
            del rows[row]
        if not rows:
            self._drop(page)
        elif gone:
            self._changed_pages.add(page)
            self._matters(page, max(_until_ms(row, value) for row, value in rows.items()))

    def _drop(self, page: int) -> None:
        number = page >> GROUP_SHIFT
        del self._group(number)[page]
        self._changed_groups.add(number)
        self._pages.pop(page, None)
        self._changed_pages.discard(page)
        self._state.remove(page_state_key(page))

    def _group(self, number: int) -> PageGroup:
        group = self._groups.get(number)
        if group is None:
            value = self._state.get(page_group_state_key(number)) if number in self._meta.groups else None
            group = self._groups[number] = {} if value is None else GROUP.decode(value)
        return group

    def _page(self, page: int) -> Page:
        rows = self._pages.get(page)
        if rows is None:
            value = self._state.get(page_state_key(page))
            rows = self._pages[page] = {} if value is None else PAGE.decode(value)
        return rows


def removed_of(page: Page) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the changelog records for removed timers."""
    for row in page:
        if row[KIND] == b"v":
            yield removed_key(_offset_of(row), due_ms_of(row[BEHIND_PARTITION])), REMOVED


def _offset_of(row: bytes) -> StoredOffset:
    return offset_of(row[BEHIND_PARTITION]) if row[KIND] == b"v" else decode_offset(row[LEADING_OFFSET], "big")


def _page_of(row: bytes) -> int:
    return _offset_of(row) >> PAGE_SHIFT


def _until_ms(row: bytes, value: bytes) -> int:
    return due_ms_of(row[BEHIND_PARTITION]) if row[KIND] == b"v" else decode_due(value)
