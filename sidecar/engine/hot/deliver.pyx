"""From entries to the records that fire them: the plain cases."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from sidecar.engine.hot.wire cimport lane_row_of, named, put_number, read_u16, read_u32, read_u64

from sidecar.changelog.entry import FLAGS_AT, HEAD, KEY_BYTES, LEVEL_AT, ORDERED
from sidecar.contract.dialects import ibm, native
from sidecar.engine.ports import Outgoing
from sidecar.engine.rows import lane_of
from sidecar.model import ATTEMPTS_MAX
from sidecar.wheel.geometry import WIDTHS_MS

cdef Py_ssize_t _HEAD_BYTES = HEAD.size
cdef Py_ssize_t _KEY_BYTES = KEY_BYTES
cdef Py_ssize_t _LEVEL_AT = LEVEL_AT
cdef Py_ssize_t _FLAGS_AT = FLAGS_AT
cdef uint8_t _ORDERED = ORDERED
cdef int _NATIVE = native.Native.code
cdef int _IBM = ibm.Ibm.code
cdef uint16_t _ATTEMPTS_MAX = ATTEMPTS_MAX
cdef list _ATTEMPTS = list(native.ATTEMPTS)
cdef list _REMAINING = list(native.REMAININGS)
cdef int _CARRIED = len(native.CARRIED)
# Headers that are taken out, by their place among those that are carried; None: they are not.
cdef dict _PLACES = {
    name: native.CARRIED.index(name) if name in native.CARRIED else None for name in native.TAKEN_OUT
}
cdef str _CONTROL = native.CONTROL
cdef str _TIMER_ID = native.TIMER_ID
cdef str _WAS_DUE_MS = native.WAS_DUE_MS
cdef object _render_ibm = ibm.Ibm().render
cdef int64_t _WIDTHS[16]
cdef int _LEVELS = len(WIDTHS_MS)
for _level in range(_LEVELS):
    _WIDTHS[_level] = WIDTHS_MS[_level]

# Header names come again and again: one object for each, found by length and bytes.
cdef enum:
    NAMES = 256
    NAME_BYTES_MAX = 64
cdef list _names = [None] * NAMES
cdef bytes _name_bytes = bytes(NAMES * NAME_BYTES_MAX)


cdef struct Piece:
    # A str or bin inside a buffer; `length` is -1 for nil.
    const uint8_t* start
    Py_ssize_t length


def read_plain(int number, entries, dict origins, slow, Py_ssize_t headers_left, bint keeps_entries, bytes lane_prefix):
    """Return what `engine.deliver.read_due` returns for entries that are due, and how many headers are left.

    Args:
        number: The input partition.
        entries: In key order.
        origins: Names by their bytes; takes new ones.
        slow: Makes a `Due` of an entry that is not a plain one.
        headers_left: The records may have so many headers, and those of one record more.
        keeps_entries: Whether the entries are kept beside the records.
        lane_prefix: Of the partition's rows in the index of lanes.
    """
    cdef list due = []
    cdef bytes entry
    cdef object made
    cdef _Last last = _Last()
    for entry in entries:
        made = _due(number, entry, origins, last, keeps_entries, lane_prefix, &headers_left)
        if made is None:
            made = slow(entry)
            headers_left -= len(made[4].headers)
        due.append(made)
        if headers_left <= 0:
            break
    return due, headers_left


cdef class _Last:
    """Origin and slot of the last entry: the next one mostly has the same."""

    cdef bytes origin_bytes
    cdef object origin, slot
    cdef int64_t slot_number
    cdef int level


cdef object _due(int number, bytes entry, dict origins, _Last last, bint keeps_entries, bytes lane_prefix,
                 Py_ssize_t* headers_left):
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(entry)
    cdef const uint8_t* end = start + PyBytes_GET_SIZE(entry)
    if end - start < _HEAD_BYTES:
        return None
    cdef int64_t due_ms = <int64_t>read_u64(start)
    cdef uint64_t offset = read_u64(start + 8)
    cdef int64_t requested_ms = <int64_t>read_u64(start + 16)
    cdef uint8_t level = start[_LEVEL_AT]
    cdef int64_t first_ms = <int64_t>read_u64(start + 26)
    cdef uint16_t attempt = read_u16(start + 42)
    cdef uint16_t limit = read_u16(start + 44)
    cdef uint8_t dialect = start[46]
    cdef int32_t target = <int32_t>read_u32(start + 47)
    cdef uint16_t origin_length = read_u16(start + 51)
    cdef uint16_t id_length = read_u16(start + 53)
    if (
        due_ms < 0 or requested_ms < 0 or first_ms < 0 or level >= _LEVELS
        or end - start < _HEAD_BYTES + origin_length + id_length
    ):
        return None
    if number < 0 or not _is_origin(start + _HEAD_BYTES, origin_length, origins, last):
        return None
    cdef Piece key, value
    cdef Py_ssize_t count
    cdef const uint8_t* at = start + _HEAD_BYTES + origin_length + id_length
    if at >= end or at[0] != 0x93:
        return None
    at = _read_bin(at + 1, end, &key)
    if at == NULL:
        return None
    at = _read_bin(at, end, &value)
    if at == NULL:
        return None
    at = _read_array(at, end, &count)
    if at == NULL:
        return None
    cdef list headers = _headers(at, end, count)
    if headers is not None and dialect == _NATIVE:
        headers = _native(headers, attempt, limit)
        if headers is None:
            return None
        _add_timer(headers, number, offset, first_ms, requested_ms)
    elif headers is not None and dialect == _IBM:
        headers = _render_ibm(headers, attempt, limit, None, requested_ms)
    else:
        return None
    headers_left[0] -= len(headers)
    cdef object source = PyBytes_FromStringAndSize(<const char*>start, _KEY_BYTES)
    cdef object outgoing = named(
        <type>Outgoing, (last.origin, target, _bytes(&key), _bytes(&value), headers, requested_ms, source)
    )
    cdef object slot = None
    if due_ms == first_ms and not id_length:
        if last.slot is None or last.level != level or last.slot_number != due_ms // _WIDTHS[level]:
            last.level, last.slot_number = level, due_ms // _WIDTHS[level]
            last.slot = (level, last.slot_number)
        slot = last.slot
    cdef object lane_row = None
    if start[_FLAGS_AT] & _ORDERED and slot is not None:
        lane_row = lane_row_of(lane_prefix, lane_of(last.origin, (<tuple>outgoing)[2] or b""), offset, first_ms)
    return (source, entry if keeps_entries else None, end - start, slot, outgoing, lane_row)


cdef bint _is_origin(const uint8_t* name, uint16_t length, dict origins, _Last last) except? False:
    """Make `last.origin` that of these bytes. False: they are not UTF-8."""
    cdef bytes held = last.origin_bytes
    if held is not None and PyBytes_GET_SIZE(held) == length and memcmp(PyBytes_AS_STRING(held), name, length) == 0:
        return True
    held = PyBytes_FromStringAndSize(<const char*>name, length)
    cdef object origin = origins.get(held)
    if origin is None:
        try:
            origin = origins[held] = held.decode()
        except UnicodeDecodeError:
            return False
    last.origin_bytes, last.origin = held, origin
    return True


cdef inline object _bytes(Piece* piece):
    return None if piece.length < 0 else PyBytes_FromStringAndSize(<const char*>piece.start, piece.length)


cdef list _headers(const uint8_t* at, const uint8_t* end, Py_ssize_t count):
    """Read the headers, which are the last of an entry; None when the bytes are not plain."""
    cdef list headers = []
    cdef Piece name, value
    cdef Py_ssize_t each
    cdef object text
    for each in range(count):
        if at >= end or at[0] != 0x92:
            return None
        at = _read_str(at + 1, end, &name)
        if at == NULL:
            return None
        at = _read_bin(at, end, &value)
        if at == NULL:
            return None
        text = _text(&name)
        if text is None:
            return None
        headers.append((text, _bytes(&value)))
    return headers if at == end else None


cdef list _native(list headers, uint16_t attempt, uint16_t limit):
    """Render as `Native.render` does, up to the timer id; None when the numbers are not plain."""
    cdef list fired = []
    cdef list carried = None
    cdef PyObject* place
    cdef object header, name
    cdef int left = <int>limit - <int>attempt - 1
    if attempt >= _ATTEMPTS_MAX or left < 0 or left >= _ATTEMPTS_MAX:
        return None
    for header in headers:
        name = (<tuple>header)[0]
        if (<str>name).startswith("retry-"):
            place = PyDict_GetItem(_PLACES, name)
            if place != NULL:
                if <object>place is not None:
                    if carried is None:
                        carried = [None] * _CARRIED
                    carried[<int><object>place] = header
                continue
            if (<str>name).startswith(_CONTROL):
                continue
        fired.append(header)
    fired.append(_ATTEMPTS[attempt])
    fired.append(_REMAINING[left])
    if carried is not None:
        fired += [header for header in carried if header is not None]
    return fired


cdef int _add_timer(list headers, int number, uint64_t offset, int64_t first_ms, int64_t requested_ms) except -1:
    cdef uint8_t text[64]  # at most 10 + 1 + 20 + 1 + 19 bytes
    cdef uint8_t* to = put_number(text, number)
    to[0] = 45
    to = put_number(to + 1, offset)
    to[0] = 45
    to = put_number(to + 1, first_ms)
    headers.append((_TIMER_ID, PyBytes_FromStringAndSize(<char*>text, to - text)))
    to = put_number(text, requested_ms)
    headers.append((_WAS_DUE_MS, PyBytes_FromStringAndSize(<char*>text, to - text)))
    return 0


# Each reader returns where the next value begins, or NULL: the bytes are of another kind, or end too early.
cdef inline const uint8_t* _piece(
    const uint8_t* at, const uint8_t* end, Py_ssize_t length, Piece* piece
) noexcept nogil:
    if length > end - at:
        return NULL
    piece.start = at
    piece.length = length
    return at + length


cdef const uint8_t* _read_bin(const uint8_t* at, const uint8_t* end, Piece* piece) noexcept nogil:
    cdef Py_ssize_t left = end - at
    cdef Py_ssize_t length
    if left < 1:
        return NULL
    if at[0] == 0xc0:
        piece.start = NULL
        piece.length = -1
        return at + 1
    if at[0] == 0xc4 and left >= 2:
        length = at[1]
        at += 2
    elif at[0] == 0xc5 and left >= 3:
        length = read_u16(at + 1)
        at += 3
    elif at[0] == 0xc6 and left >= 5:
        length = read_u32(at + 1)
        at += 5
    else:
        return NULL
    return _piece(at, end, length, piece)


cdef const uint8_t* _read_str(const uint8_t* at, const uint8_t* end, Piece* piece) noexcept nogil:
    cdef Py_ssize_t left = end - at
    cdef Py_ssize_t length
    if left < 1:
        return NULL
    if at[0] & 0xe0 == 0xa0:
        length = at[0] & 0x1f
        at += 1
    elif at[0] == 0xd9 and left >= 2:
        length = at[1]
        at += 2
    elif at[0] == 0xda and left >= 3:
        length = read_u16(at + 1)
        at += 3
    else:
        return NULL
    return _piece(at, end, length, piece)


cdef const uint8_t* _read_array(const uint8_t* at, const uint8_t* end, Py_ssize_t* count) noexcept nogil:
    cdef Py_ssize_t left = end - at
    if left < 1:
        return NULL
    if at[0] & 0xf0 == 0x90:
        count[0] = at[0] & 0x0f
        return at + 1
    if at[0] == 0xdc and left >= 3:
        count[0] = read_u16(at + 1)
        return at + 3
    return NULL


cdef object _text(Piece* name):
    """Return a header name, the same object as before where possible; None when it is not UTF-8."""
    cdef Py_ssize_t length = name.length
    cdef Py_ssize_t place, at
    cdef char* known
    cdef object text
    if length < 2 or length > NAME_BYTES_MAX:
        return _decoded(name)
    place = (name.start[length - 1] * 31 + name.start[length - 2] * 7 + name.start[0] + length * 13) % NAMES
    known = PyBytes_AS_STRING(_name_bytes) + place * NAME_BYTES_MAX
    text = <object>PyList_GET_ITEM(_names, place)
    if text is not None and len(<str>text) == length and memcmp(known, name.start, length) == 0:
        return text
    text = _decoded(name)
    # Of ASCII the characters are as many as the bytes.
    if text is not None and len(<str>text) == length:
        _names[place] = text
        for at in range(length):
            known[at] = <char>name.start[at]
    return text


cdef object _decoded(Piece* name):
    try:
        return PyUnicode_DecodeUTF8(<const char*>name.start, name.length, NULL)
    except UnicodeDecodeError:
        return None
