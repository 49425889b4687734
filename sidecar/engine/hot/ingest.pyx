"""From a consumed record to the entry that is stored, and from the entries of a block to rows: the plain cases."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp

from sidecar.engine.hot.wire cimport (
    Span, is_header, is_plain, is_text, named, number_of, put_bytes, put_u16, put_u32, put_u64, read_u64, sooner,
)

from sidecar.changelog.entry import FLAGS_AT, LASTING, MOVING, ORDERED, encode_payload
from sidecar.contract.dialects import ibm, native
from sidecar.contract.sizes import DELIVERY_OVERHEAD_BYTES
from sidecar.engine.items import Arrival, Ordered
from sidecar.engine.rows import lane_of
from sidecar.model import DUE_MS_MAX

cdef Py_ssize_t _LASTING_BYTES = LASTING.size
cdef Py_ssize_t _MOVING_BYTES = MOVING.size
cdef Py_ssize_t _FLAGS_AT = FLAGS_AT
cdef uint8_t _ORDERED = ORDERED
cdef Py_ssize_t _OVERHEAD_BYTES = DELIVERY_OVERHEAD_BYTES
cdef int64_t _DUE_MS_MAX = DUE_MS_MAX
cdef int _NATIVE = native.Native.code
cdef int _IBM = ibm.Ibm.code
cdef Py_ssize_t _CACHED_MAX = 4096
cdef Py_ssize_t _EXCEPTIONS_MAX = 512
cdef Py_ssize_t _CACHED_BYTES_MAX = 512

# Headers by what the plain case does with them.
cdef enum:
    OTHER = 0
    ORIGIN = 1
    DUE = 2
    DELAY = 3
    ATTEMPT = 4
    EXCEPTION = 5
    GROUP = 6
    BASE = 7
    KINDS = 8

cdef dict _NATIVE_KINDS = {
    native.ORIGIN_TOPIC: ORIGIN,
    native.DUE_MS: DUE,
    native.DELAY_MS: DELAY,
    native.ATTEMPT: ATTEMPT,
    native.EXCEPTION: EXCEPTION,
    native.GROUP: GROUP,
}
cdef dict _IBM_KINDS = {
    ibm.ORIGIN_TOPIC: ORIGIN,
    ibm.TIMESTAMP_MS: BASE,
    ibm.ATTEMPTS: ATTEMPT,
    ibm.EXCEPTION_TYPE: EXCEPTION,
}


cdef class Rules:
    """The delays, limits and exceptions of one policy."""

    cdef object _retried
    cdef dict _exceptions
    cdef int64_t native_delays[64]
    cdef int64_t ibm_delays[64]
    cdef int native_count, ibm_count
    cdef int64_t native_limit, ibm_limit
    cdef bint ordered

    def __init__(self, retried, *, native_delays_ms, native_limit, ibm_delays_ms, ibm_limit, ordered):
        self._retried = retried
        self._exceptions = {}
        # Behind the last delay that fits, Python looks it up.
        self.native_count = min(len(native_delays_ms), 64)
        self.ibm_count = min(len(ibm_delays_ms), 64)
        for at in range(self.native_count):
            self.native_delays[at] = native_delays_ms[at]
        for at in range(self.ibm_count):
            self.ibm_delays[at] = ibm_delays_ms[at]
        self.native_limit = native_limit
        self.ibm_limit = ibm_limit
        self.ordered = ordered

    cdef bint is_retried(self, PyObject** found) except? False:
        cdef bytes name = b"" if found[EXCEPTION] == NULL else <bytes>found[EXCEPTION]
        cdef PyObject* known
        if found[EXCEPTION] != NULL and not PyBytes_GET_SIZE(name):
            return False
        if PyBytes_GET_SIZE(name) > _CACHED_BYTES_MAX:
            return False
        known = PyDict_GetItem(self._exceptions, name)
        if known != NULL:
            return <object>known is True
        if len(self._exceptions) >= _EXCEPTIONS_MAX:
            self._exceptions.clear()
        retried = self._retried(name)
        self._exceptions[name] = retried
        return retried is True


cdef class Examiner:
    """Makes arrivals of plain records. See `engine.ingest`, which it must equal to the byte."""

    cdef dict _origins
    cdef object _topic_of
    cdef dict _topics
    cdef int64_t _max_delay_ms
    cdef bint _native, _ibm, _measures

    def __init__(self, dict origins, profiles, topic_of, *, max_delay_ms, measures):
        self._origins = origins
        self._topic_of = topic_of
        self._topics = {}
        self._native = "native" in profiles
        self._ibm = "ibm" in profiles
        self._max_delay_ms = max_delay_ms
        self._measures = measures

    def examine(self, record, int64_t arrived_ms):
        """Return the arrival, ordered or not, None when the record is not a plain one."""
        cdef object offset = (<tuple>record)[1]
        cdef int64_t timestamp_ms = (<tuple>record)[2]
        cdef object key = (<tuple>record)[3]
        cdef object value = (<tuple>record)[4]
        cdef object headers = (<tuple>record)[5]
        # What the pointers point at, where it is not a part of the record.
        cdef list bare = []
        cdef PyObject* found[KINDS]
        cdef bint is_ibm = False
        cdef int64_t due_ms = 0
        cdef int64_t attempt = 0
        cdef object place, topic, entry
        cdef Rules rules
        if not is_plain(key, value, headers):
            return None
        if not self._find(<list>headers, bare, found, &is_ibm):
            return None
        place = self._place(<bytes>found[ORIGIN])
        if place is None:
            return None
        topic = (<tuple>place)[0]
        rules = <Rules>(<tuple>place)[1]
        cdef PyObject* origin = PyDict_GetItem(self._origins, topic)
        if origin == NULL:
            return None
        if not self._times(rules, found, is_ibm, timestamp_ms, arrived_ms, &due_ms, &attempt):
            return None
        cdef int64_t limit = rules.ibm_limit if is_ibm else rules.native_limit
        if attempt >= limit or limit > 0xffff or not rules.is_retried(found):
            return None
        if due_ms > _DUE_MS_MAX or due_ms - arrived_ms > self._max_delay_ms:
            return None
        cdef Py_ssize_t size_max = -1
        if self._measures:
            size_max = (<tuple>origin)[1]
            if value is not None and PyBytes_GET_SIZE(value) * 2 > size_max:
                return None
            size_max -= _OVERHEAD_BYTES
        entry = _lasting(due_ms, timestamp_ms, attempt, limit, _IBM if is_ibm else _NATIVE, topic,
                         encode_payload((key, value, headers)))
        if entry is None or (self._measures and PyBytes_GET_SIZE(entry) > size_max):
            return None
        cdef object arrival = named(<type>Arrival, (offset, due_ms, topic, entry, None, False))
        if rules.ordered and key is not None:
            return named(<type>Ordered, (offset, arrival, lane_of(topic, key)))
        return arrival

    def take(self, records, dict buffers, int64_t arrived_ms, Py_ssize_t bytes_each):
        """Put the arrivals of plain records, ordered or not, into buffers; return the first other record, None when there is none.

        Args:
            records: Iterator; goes on behind the record that is returned.
            buffers: Partition to buffer. One that has waiting records takes nothing here.
            arrived_ms: Wall time now.
            bytes_each: What an arrival takes beside its entry.
        """
        cdef object number = None
        cdef object buffer = None
        cdef object items, record, item
        cdef int64_t expected = 0
        cdef Py_ssize_t taken = 0
        try:
            for record in records:
                if buffer is None or (<tuple>record)[0] != number:
                    if buffer is not None:
                        _note(buffer, expected, taken)
                    number = (<tuple>record)[0]
                    buffer = buffers.get(number)
                    if buffer is None or buffer.waiting:
                        buffer = None
                        return record
                    expected, taken, items = buffer.expected, 0, buffer.items
                if (<tuple>record)[1] < expected:
                    return record
                item = self.examine(record, arrived_ms)
                if item is None:
                    return record
                expected = (<tuple>record)[1]
                expected += 1
                PyList_Append(items, item)
                if type(item) is Ordered:
                    item = (<tuple>item)[1]
                taken += bytes_each + PyBytes_GET_SIZE((<tuple>item)[3])
        finally:
            if buffer is not None:
                _note(buffer, expected, taken)
        return None

    cdef bint _find(self, list headers, list bare, PyObject** found, bint* is_ibm) except? False:
        """Find the values of the dialect's headers. False: both dialects, a name twice, or one that is not plain."""
        cdef Py_ssize_t at, length
        cdef PyObject* kind
        cdef object header, name, value
        cdef const char* text
        cdef bint is_native = False
        is_ibm[0] = False
        for at in range(KINDS):
            found[at] = NULL
        for at in range(PyList_GET_SIZE(headers)):
            header = <object>PyList_GET_ITEM(headers, at)
            if not is_header(header):
                return False
            name, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
            text = PyUnicode_AsUTF8AndSize(name, &length)
            if length >= 6 and memcmp(text, b"retry-", 6) == 0:
                is_native = True
                kind = PyDict_GetItem(_NATIVE_KINDS, name)
            elif length >= 11 and memcmp(text, b"x-ibm-retry", 11) == 0:
                is_ibm[0] = True
                kind = PyDict_GetItem(_IBM_KINDS, name)
            else:
                continue
            if kind == NULL or value is None or found[<int><object>kind] != NULL:
                return False
            if is_ibm[0] and (value[:1] == b'"' or value[-1:] == b'"'):
                value = (<bytes>value).strip(b'"')
                bare.append(value)
            found[<int><object>kind] = <PyObject*>value
        if is_native == is_ibm[0] or found[ORIGIN] == NULL:
            return False
        return self._ibm if is_ibm[0] else self._native

    cdef object _place(self, bytes value):
        """Return the origin as text with its rules; None when it is not allowed or its rules are not plain."""
        cdef PyObject* known
        if PyBytes_GET_SIZE(value) > 255:
            return None
        known = PyDict_GetItem(self._topics, value)
        if known != NULL:
            return <object>known
        if len(self._topics) >= _CACHED_MAX:
            self._topics.clear()
        place = self._topic_of(value)
        self._topics[value] = place
        return place

    cdef bint _times(self, Rules rules, PyObject** found, bint is_ibm, int64_t timestamp_ms, int64_t arrived_ms, int64_t* due_ms,
                     int64_t* attempt) except? False:
        cdef int64_t number = 0
        cdef int count = rules.ibm_count if is_ibm else rules.native_count
        cdef int64_t* delays = &rules.ibm_delays[0] if is_ibm else &rules.native_delays[0]
        attempt[0] = 0
        if found[ATTEMPT] != NULL and not number_of(<object>found[ATTEMPT], attempt):
            return False
        if is_ibm:
            if found[BASE] == NULL or found[EXCEPTION] == NULL or not number_of(<object>found[BASE], &number):
                return False
            if attempt[0] >= count:
                return False
            due_ms[0] = number + delays[attempt[0]]
            return True
        if found[GROUP] != NULL and not is_text(<object>found[GROUP]):
            return False
        if found[DUE] != NULL:
            return found[DELAY] == NULL and number_of(<object>found[DUE], due_ms)
        if timestamp_ms > 1_000_000_000_000_000_000:
            return False
        if found[DELAY] != NULL:
            if not number_of(<object>found[DELAY], &number):
                return False
            due_ms[0] = (timestamp_ms if timestamp_ms >= 0 else arrived_ms) + number
            return True
        if attempt[0] >= count:
            return False
        due_ms[0] = (timestamp_ms if 0 <= timestamp_ms <= arrived_ms else arrived_ms) + delays[attempt[0]]
        return True


cdef int _note(object buffer, int64_t expected, Py_ssize_t taken) except -1:
    buffer.expected = expected
    buffer.bytes += taken
    return 0


cdef bytes _lasting(int64_t first_ms, int64_t timestamp_ms, int64_t attempt, int64_t limit, int dialect, object topic,
                    bytes payload):
    """Pack as `changelog.entry.lasting` does, for a record without a retry id and without a partition of its own."""
    cdef Py_ssize_t topic_length
    cdef const char* topic_text = PyUnicode_AsUTF8AndSize(topic, &topic_length)
    if first_ms < 0 or topic_length > 0xffff:
        return None
    cdef Py_ssize_t size = _LASTING_BYTES + topic_length + PyBytes_GET_SIZE(payload)
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(packed)
    cdef uint8_t* to = put_u64(start, <uint64_t>first_ms)
    to = put_u64(to, <uint64_t>timestamp_ms)
    to = put_u16(put_u16(to, attempt), limit)
    to[0] = dialect
    to = put_u32(to + 1, 0xffffffff)
    to = put_u16(put_u16(to, topic_length), 0)
    to = put_bytes(to, topic_text, topic_length)
    to = put_bytes(to, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
    if to - start != size:
        raise SystemError(f"{to - start} bytes written where {size} were counted")
    return packed


cdef class Timers:
    """Timer rows of a restore: of the entries of blocks that were never moved, have no retry id and no order.

    The entries stay where they came, in the values of their blocks. Iterates over rows and entries in key order, once.
    """

    cdef bytes _prefix
    cdef list _values
    cdef Span* _spans
    cdef Py_ssize_t _room, _count, _next

    def __init__(self, bytes prefix):
        """Args:
        prefix: Of the partition's timer rows.
        """
        self._prefix = prefix
        self._values = []

    def __dealloc__(self):
        PyMem_Free(self._spans)

    def __len__(self):
        return self._count

    def add(self, bytes value, lengths, Py_ssize_t at):
        """Take the plain entries of a block; return the others.

        Args:
            value: Of the block's record.
            lengths: Of the entries.
            at: Where the first entry begins.
        """
        cdef Py_ssize_t end = PyBytes_GET_SIZE(value)
        cdef Py_ssize_t length
        cdef const uint8_t* start
        cdef Span* spans
        cdef Span* span
        cdef list others = []
        if self._room - self._count < len(lengths):
            spans = <Span*>PyMem_Realloc(self._spans, 2 * (self._count + len(lengths)) * sizeof(Span))
            if spans == NULL:
                raise MemoryError
            self._spans, self._room = spans, 2 * (self._count + len(lengths))
        self._values.append(value)
        for length in lengths:
            if at < 0 or length < 0 or length > end - at:
                raise IndexError("an entry ends behind its block")
            start = <const uint8_t*>PyBytes_AS_STRING(value) + at
            at += length
            if (
                length < _MOVING_BYTES + _LASTING_BYTES
                or start[_FLAGS_AT] & _ORDERED
                or read_u64(start) != read_u64(start + _MOVING_BYTES)
                or start[_MOVING_BYTES + _LASTING_BYTES - 2]
                or start[_MOVING_BYTES + _LASTING_BYTES - 1]
            ):
                others.append(PyBytes_FromStringAndSize(<const char*>start, length))
                continue
            span = self._spans + self._count
            span.due_ms, span.offset = read_u64(start), read_u64(start + 8)
            span.start, span.length, span.turn = start, length, self._count
            self._count += 1
        return others

    def pour(self, dict rows):
        """Write all into `rows` in the order in which they came, and forget them."""
        cdef Py_ssize_t each
        for each in range(self._count):
            PyDict_SetItem(rows, self._row(self._spans + each), _entry(self._spans + each))
        self._count = 0
        self._values.clear()

    def __iter__(self):
        qsort(self._spans, self._count, sizeof(Span), &sooner)
        self._next = 0
        return self

    def __next__(self):
        cdef Span* span
        while self._next < self._count:
            span = self._spans + self._next
            self._next += 1
            # Of several entries with one key the last one holds.
            if self._next == self._count or span[1].due_ms != span.due_ms or span[1].offset != span.offset:
                return self._row(span), _entry(span)
        raise StopIteration

    cdef bytes _row(self, const Span* span):
        cdef Py_ssize_t length = PyBytes_GET_SIZE(self._prefix)
        cdef bytes row = PyBytes_FromStringAndSize(NULL, length + 16)
        put_bytes(
            put_bytes(<uint8_t*>PyBytes_AS_STRING(row), PyBytes_AS_STRING(self._prefix), length), span.start, 16
        )
        return row


cdef inline bytes _entry(const Span* span):
    return PyBytes_FromStringAndSize(<const char*>span.start, span.length)
