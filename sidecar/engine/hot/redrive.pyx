"""From a dead letter to the record that goes to the retry topic again: the plain cases."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_Append, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t
from libc.string cimport memcmp

from sidecar.engine.hot.wire cimport is_header, is_plain, is_text, named, number_of

from sidecar.contract import dead_letter
from sidecar.contract.dialects import native
from sidecar.contract.sizes import BATCH_BYTES, FRAMING_BYTES, HEADER_BYTES
from sidecar.engine.ports import Outgoing
from sidecar.model import ANY_PARTITION, RETRY_ID_BYTES_MAX

cdef Py_ssize_t _FRAME_BYTES = BATCH_BYTES + FRAMING_BYTES
cdef Py_ssize_t _HEADER_BYTES = HEADER_BYTES
cdef Py_ssize_t _ID_BYTES_MAX = RETRY_ID_BYTES_MAX
cdef int64_t _REDRIVES_MAX = 1_000_000
cdef Py_ssize_t _KINDS_MAX = 4096
cdef Py_ssize_t _CACHED_BYTES_MAX = 512
cdef str _DUE_MS = native.DUE_MS
cdef str _REDRIVES = dead_letter.REDRIVES
cdef Py_ssize_t _OWN_BYTES = len(_DUE_MS) + len(_REDRIVES) + 2 * HEADER_BYTES

# Headers by what the plain case does with them. Those up to COUNT are found, each at most once; what is smaller than
# KEPT goes again as it is.
cdef enum:
    ORIGIN = 0
    GROUP = 1
    EXCEPTION = 2
    POLICY = 3
    RETRY_ID = 4
    KEPT = 5
    REASON = 5
    CLASS = 6
    TOPIC = 7
    PARTITION = 8
    OFFSET = 9
    REDRIVES = 10
    COUNT = 11
    GONE = 12

cdef dict _PLACES = {
    native.ORIGIN_TOPIC: ORIGIN,
    native.GROUP: GROUP,
    native.EXCEPTION: EXCEPTION,
    native.POLICY: POLICY,
    native.RETRY_ID: RETRY_ID,
    dead_letter.REASON: REASON,
    dead_letter.CONNECT_CLASS: CLASS,
    dead_letter.CONNECT_TOPIC: TOPIC,
    dead_letter.CONNECT_PARTITION: PARTITION,
    dead_letter.CONNECT_OFFSET: OFFSET,
    dead_letter.REDRIVES: REDRIVES,
    **{
        name: GONE
        for name in (
            dead_letter.TIMESTAMP_MS,
            dead_letter.DETAIL,
            dead_letter.CONNECT_NAME,
            dead_letter.CONNECT_STAGE,
            dead_letter.CONNECT_MESSAGE,
            native.DUE_MS,
            native.DELAY_MS,
            native.ATTEMPT,
            native.REMAINING,
            native.FIRST_MS,
            native.TIMER_ID,
            native.WAS_DUE_MS,
            native.REPLACE,
            native.TARGET,
        )
    },
}


cdef class Redriver:
    """Makes the records of plain dead letters. See `RedrivePolicy.decide_any`, which it must equal.

    Args:
        judge: Given reason, origin, exception and group as the headers have them, returns whether such a dead letter
            goes again, False when it does not match the filter, None when Python must decide. It is asked once.
        topic: The retry topic.
        partitions: The number of its partitions.
        bytes_max: Its `max.message.bytes`.
        max_redrives: The limit of the loop guard.
    """

    cdef object _judge
    cdef dict _kinds
    cdef str _topic
    cdef bytes _topic_bytes
    cdef int64_t _partitions, _max_redrives
    cdef Py_ssize_t _bytes_max
    cdef int64_t _due_ms
    cdef object _due_header
    cdef list _count_headers

    def __init__(self, judge, *, str topic, partitions, bytes_max, max_redrives):
        self._judge = judge
        self._kinds = {}
        self._topic = topic
        self._topic_bytes = topic.encode()
        self._partitions = partitions
        self._bytes_max = bytes_max
        self._max_redrives = min(max_redrives, _REDRIVES_MAX)
        self._due_ms = -1
        self._due_header = None
        self._count_headers = [(_REDRIVES, b"%d" % (count + 1)) for count in range(min(self._max_redrives, 16))]

    def again(self, record, int64_t due_ms):
        """Return the record for the retry topic, False when the filter excludes it, None when it is not a plain one."""
        cdef object key = (<tuple>record)[3]
        cdef object value = (<tuple>record)[4]
        cdef object headers = (<tuple>record)[5]
        cdef PyObject* found[COUNT]
        cdef Py_ssize_t size = _FRAME_BYTES
        cdef int64_t redrives = 0
        cdef list again
        cdef object verdict
        if not is_plain(key, value, headers):
            return None
        again = _alive(<list>headers, found, &size)
        if again is None or found[REASON] == NULL or found[CLASS] == NULL or found[ORIGIN] == NULL:
            return None
        verdict = self._verdict(found)
        if verdict is not True:
            return verdict
        if found[REDRIVES] != NULL and not number_of(<object>found[REDRIVES], &redrives):
            return None
        if redrives >= self._max_redrives:
            return None
        cdef int64_t target = self._partition(found)
        if target < ANY_PARTITION:
            return None
        if due_ms != self._due_ms:
            self._due_ms = due_ms
            self._due_header = (_DUE_MS, b"%d" % due_ms)
        again.append(self._due_header)
        if redrives < len(self._count_headers):
            again.append(self._count_headers[redrives])
        else:
            again.append((_REDRIVES, b"%d" % (redrives + 1)))
        size += _OWN_BYTES + PyBytes_GET_SIZE(<bytes>(<tuple>self._due_header)[1])
        size += PyBytes_GET_SIZE(<bytes>(<tuple><object>PyList_GET_ITEM(again, PyList_GET_SIZE(again) - 1))[1])
        if key is not None:
            size += PyBytes_GET_SIZE(key)
        if value is not None:
            size += PyBytes_GET_SIZE(value)
        if size > self._bytes_max:
            return None
        return named(<type>Outgoing, (self._topic, target, key, value, again, 0, b""))

    cdef object _verdict(self, PyObject** found):
        """Return what `judge` says of such dead letters."""
        cdef object kind = (
            <object>found[REASON],
            <object>found[ORIGIN],
            <object>found[CLASS],
            None if found[GROUP] == NULL else <object>found[GROUP],
        )
        cdef PyObject* known = PyDict_GetItem(self._kinds, kind)
        if known != NULL:
            return <object>known
        for text in <tuple>kind:
            if text is not None and PyBytes_GET_SIZE(text) > _CACHED_BYTES_MAX:
                return None
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        verdict = self._judge(*kind)
        self._kinds[kind] = verdict
        return verdict

    cdef int64_t _partition(self, PyObject** found) except? -3:
        """Return the partition that the message came from, ANY_PARTITION, or -2 when that cannot be read."""
        cdef int64_t partition = 0
        cdef int64_t offset = 0
        if found[TOPIC] == NULL or found[PARTITION] == NULL or found[OFFSET] == NULL:
            return -1
        if not number_of(<object>found[PARTITION], &partition) or not number_of(<object>found[OFFSET], &offset):
            return -2
        if partition >= self._partitions or <bytes>found[TOPIC] != self._topic_bytes:
            return -1
        return partition


cdef list _alive(list headers, PyObject** found, Py_ssize_t* size):
    """Return the headers that go again, and find values; None when a header is not plain."""
    cdef list again = []
    cdef Py_ssize_t at, length
    cdef int place
    cdef object header, name, value
    cdef PyObject* known
    cdef const char* text
    for place in range(COUNT):
        found[place] = NULL
    for at in range(PyList_GET_SIZE(headers)):
        header = <object>PyList_GET_ITEM(headers, at)
        if not is_header(header):
            return None
        name, value = <object>PyTuple_GET_ITEM(header, 0), <object>PyTuple_GET_ITEM(header, 1)
        known = PyDict_GetItem(_PLACES, name)
        if known != NULL:
            place = <int><object>known
            if place == GONE:
                continue
            if value is None or found[place] != NULL or not is_text(value):
                return None
            found[place] = <PyObject*>value
            if place >= KEPT:
                continue
            if place == RETRY_ID and PyBytes_GET_SIZE(value) > _ID_BYTES_MAX:
                return None
        text = PyUnicode_AsUTF8AndSize(name, &length)
        if known == NULL and not _is_foreign(text, length):
            return None
        size[0] += length + _HEADER_BYTES
        if value is not None:
            size[0] += PyBytes_GET_SIZE(value)
        PyList_Append(again, header)
    return again


cdef inline bint _is_foreign(const char* text, Py_ssize_t length) noexcept:
    """Whether no dialect that is compiled and no death gives such a name."""
    if length >= 6 and memcmp(text, b"retry-", 6) == 0:
        return False
    if length >= 11 and memcmp(text, b"x-ibm-retry", 11) == 0:
        return False
    return not (length >= 17 and memcmp(text, b"__connect.errors.", 17) == 0)
