"""From arrivals to the slots, rows and blocks that hold them: the plain cases."""

from zlib import crc32

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport qsort

from sidecar.engine.hot.wire cimport Span, lane_row_of, put_bytes, put_u16, put_u32, put_u64, read_u16, sooner

from sidecar.changelog.codec import VERSION
from sidecar.changelog.entry import MOVING, ORDERED
from sidecar.engine.crossings import BUCKETS
from sidecar.engine.items import Arrival, Ordered
from sidecar.wheel.geometry import WIDTHS_MS

cdef uint8_t _VERSION = VERSION
cdef Py_ssize_t _MOVING_BYTES = MOVING.size
cdef uint8_t _ORDERED = ORDERED
cdef uint16_t _BUCKETS = BUCKETS
cdef int64_t _WIDTHS[16]
for _level in range(len(WIDTHS_MS)):
    _WIDTHS[_level] = WIDTHS_MS[_level]

cdef enum:
    FRAME_BYTES = 5  # version u8, checksum u32
    HEAD_BYTES = 7  # level u8, entries u32, origins u16
    ORIGIN_BYTES = 10  # length u16, count u32, deferred u32


def store_plain(list batch, Py_ssize_t at, *, int64_t base, int64_t seen, int64_t now_ms, int64_t watermark_ms,
                Py_ssize_t entry_bytes_max, tuple level_ends_ms, bytes prefix, dict rows, object groups, object count,
                bytes lane_prefix, dict ordered, object crossings):
    """Store the plain arrivals of a batch from `at` on as `Overlay.store_plain` does; return where another item is.

    Args:
        batch: Items in offset order.
        at: The first one.
        base: Added to an input offset for the stored one.
        seen: Input offsets below it were stored before.
        now_ms: Of the plan. What is due by then is not stored.
        watermark_ms: What is due by then is stored at another due.
        entry_bytes_max: What is larger must be looked at.
        level_ends_ms: First due beyond each level but the last.
        prefix: Of the partition's timer rows.
        rows: Take the new rows.
        groups: Slot to group; makes those that are missing.
        count: Takes a slot and how many timers each origin gets in it.
        lane_prefix: Of the partition's rows in the index of lanes.
        ordered: Takes the rows of ordered timers there.
        crossings: Of the partition's lanes.
    """
    cdef Py_ssize_t end = at
    cdef Py_ssize_t each
    cdef int64_t due_ms
    cdef int64_t offset
    cdef object item, lane
    cdef _Lanes lanes = None
    while end < PyList_GET_SIZE(batch):
        item = <object>PyList_GET_ITEM(batch, end)
        lane = None
        if type(item) is Ordered:
            lane = (<tuple>item)[2]
            item = (<tuple>item)[1]
        if type(item) is not Arrival or (<tuple>item)[5] is not False or (<tuple>item)[4] is not None:
            break
        due_ms = (<tuple>item)[1]
        if (
            due_ms <= now_ms or due_ms <= watermark_ms or (<tuple>item)[0] < seen
            or PyBytes_GET_SIZE(<bytes?>(<tuple>item)[3]) + _MOVING_BYTES > entry_bytes_max
        ):
            break
        if lane is not None:
            if lanes is None:
                lanes = _Lanes(lane_prefix, ordered, crossings)
            offset = (<tuple>item)[0]
            lanes.append(lane, base + offset, due_ms)
        end += 1
    if end == at:
        return at
    cdef Span* turns = <Span*>PyMem_Malloc((end - at) * sizeof(Span))
    if turns == NULL:
        raise MemoryError
    try:
        for each in range(end - at):
            item = <object>PyList_GET_ITEM(batch, at + each)
            if type(item) is Ordered:
                item = (<tuple>item)[1]
            turns[each].due_ms, turns[each].offset, turns[each].turn = (<tuple>item)[1], 0, at + each
        qsort(turns, end - at, sizeof(Span), &sooner)
        _store(batch, turns, end - at, base, level_ends_ms, prefix, rows, groups, count)
    finally:
        PyMem_Free(turns)
    return end


cdef class _Lanes:
    """Takes the ordered timers of a run, as `Lanes.append` does."""

    cdef bytes prefix
    cdef dict rows
    cdef array latest, until

    def __init__(self, bytes prefix, dict rows, crossings):
        crossings.begin()
        self.prefix, self.rows = prefix, rows
        self.latest, self.until = crossings.latest_ms, crossings.until_ms

    cdef int append(self, bytes lane, uint64_t offset, int64_t due_ms) except -1:
        cdef const uint8_t* digest = <const uint8_t*>PyBytes_AS_STRING(lane)
        cdef uint16_t bucket = read_u16(digest) % _BUCKETS
        cdef bytes due = PyBytes_FromStringAndSize(NULL, 8)
        cdef int64_t latest_ms = self.latest.data.as_longlongs[bucket]
        if due_ms >= latest_ms:
            self.latest.data.as_longlongs[bucket] = due_ms
        elif latest_ms > self.until.data.as_longlongs[bucket]:
            self.until.data.as_longlongs[bucket] = latest_ms
        put_u64(<uint8_t*>PyBytes_AS_STRING(due), due_ms)
        PyDict_SetItem(self.rows, lane_row_of(self.prefix, lane, offset, due_ms), due)
        return 0


cdef int _store(list batch, const Span* turns, Py_ssize_t items, int64_t base, tuple level_ends_ms, bytes prefix,
                dict rows, object groups, object count) except -1:
    cdef Py_ssize_t prefix_length = PyBytes_GET_SIZE(prefix)
    cdef Py_ssize_t each, length
    cdef int64_t due_ms, offset, at
    cdef int64_t number = -1
    cdef int64_t level_end_ms = 0
    cdef int level = 0
    cdef uint8_t flags
    cdef list entries, origins
    cdef dict counts = {}
    cdef object item, origin, slot, group
    cdef bytes lasting, entry, row
    cdef uint8_t* to
    for each in range(items):
        item = <object>PyList_GET_ITEM(batch, turns[each].turn)
        flags = 0
        if type(item) is Ordered:
            flags, item = _ORDERED, (<tuple>item)[1]
        due_ms = turns[each].due_ms
        # Dues rise, so levels do.
        while level < len(level_ends_ms) and due_ms >= <int64_t>level_ends_ms[level]:
            level, number = level + 1, -1
        offset = (<tuple>item)[0]
        offset += base
        origin = (<tuple>item)[2]
        lasting = (<tuple>item)[3]
        length = PyBytes_GET_SIZE(lasting)
        entry = PyBytes_FromStringAndSize(NULL, _MOVING_BYTES + length)
        to = <uint8_t*>PyBytes_AS_STRING(entry)
        to = put_u64(put_u64(put_u64(to, due_ms), offset), due_ms)
        to[0] = level
        to[1] = flags
        put_bytes(to + 2, PyBytes_AS_STRING(lasting), length)
        row = PyBytes_FromStringAndSize(NULL, prefix_length + 16)
        to = put_bytes(<uint8_t*>PyBytes_AS_STRING(row), PyBytes_AS_STRING(prefix), prefix_length)
        put_bytes(to, PyBytes_AS_STRING(entry), 16)
        PyDict_SetItem(rows, row, entry)
        at = due_ms // _WIDTHS[level]
        if at != number:
            if counts:
                count(slot, counts)
            number, counts = at, {}
            slot = (level, number)
            group = groups[slot]
            entries, origins = group.entries, group.origins
        entries.append(entry)
        origins.append(origin)
        counts[origin] = counts.get(origin, 0) + 1
    count(slot, counts)
    return 0


def pack(uint8_t level, list entries, list origins, Py_ssize_t bytes_max):
    """Return what `engine.records.block_values` returns for entries that are not deferred; None when not plain.

    Args:
        level: Of the slot.
        entries: Of the slot.
        origins: The origin of each.
        bytes_max: A block ends before an entry that exceeds it.
    """
    cdef Py_ssize_t count = PyList_GET_SIZE(entries)
    cdef Py_ssize_t at, length
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t size = 0
    cdef object entry
    cdef list values = []
    if PyList_GET_SIZE(origins) != count:
        return None
    for at in range(count):
        entry = <object>PyList_GET_ITEM(entries, at)
        if type(entry) is not bytes or PyBytes_GET_SIZE(entry) > 0x7fffffff:
            return None
        length = PyBytes_GET_SIZE(entry)
        if size + length > bytes_max and at > start:
            values.append(_block(level, entries, origins, start, at))
            start, size = at, 0
        size += length + 4
    if start < count:
        values.append(_block(level, entries, origins, start, count))
    return None if None in values else values


cdef bytes _block(uint8_t level, list entries, list origins, Py_ssize_t start, Py_ssize_t end):
    cdef dict counts = {}
    cdef list names = []
    cdef object origin = None
    cdef object entry
    cdef bytes name, value
    cdef Py_ssize_t at
    cdef Py_ssize_t run = 0
    cdef Py_ssize_t size = FRAME_BYTES + HEAD_BYTES
    for at in range(start, end):
        entry = <object>PyList_GET_ITEM(entries, at)
        size += 4 + PyBytes_GET_SIZE(entry)
        if <object>PyList_GET_ITEM(origins, at) is not origin:
            if run:
                counts[origin] = counts.get(origin, 0) + run
            origin, run = <object>PyList_GET_ITEM(origins, at), 0
        run += 1
    counts[origin] = counts.get(origin, 0) + run
    if len(counts) > 0xffff:
        return None
    for origin in counts:
        name = (<str>origin).encode()
        if PyBytes_GET_SIZE(name) > 0xffff:
            return None
        size += ORIGIN_BYTES + PyBytes_GET_SIZE(name)
        names.append((name, counts[origin]))
    value = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* first = <uint8_t*>PyBytes_AS_STRING(value)
    cdef uint8_t* to = first + FRAME_BYTES
    to[0] = level
    to = put_u16(put_u32(to + 1, end - start), len(counts))
    for name, run in names:
        to = put_bytes(put_u16(to, PyBytes_GET_SIZE(name)), PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        to = put_u32(put_u32(to, run), 0)
    for at in range(start, end):
        to = put_u32(to, PyBytes_GET_SIZE(<object>PyList_GET_ITEM(entries, at)))
    for at in range(start, end):
        entry = <object>PyList_GET_ITEM(entries, at)
        to = put_bytes(to, PyBytes_AS_STRING(entry), PyBytes_GET_SIZE(entry))
    if to - first != size:
        raise SystemError(f"{to - first} bytes written where {size} were counted")
    first[0] = _VERSION
    put_u32(first + 1, crc32(memoryview(value)[FRAME_BYTES:]))
    return value
