"""From the client library's messages to records."""

from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.list cimport PyList_GET_SIZE

from sidecar.engine.hot.wire cimport named

from sidecar.model import NO_TIMESTAMP, Record


cdef class Records:
    """Iterates over messages as records: `kafka.input.Records`, which it must equal."""

    cdef list _messages
    cdef object _report
    cdef readonly Py_ssize_t most_headers

    def __init__(self, list messages, report):
        messages.reverse()
        self._messages = messages
        self._report = report
        self.most_headers = 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef object message, error, headers, kind, timestamp_ms
        while PyList_GET_SIZE(self._messages):
            message = self._messages.pop()
            error = message.error()
            if error is not None:
                self._report(error, message.partition())
                continue
            headers = _headers(message)
            if type(headers) is list and PyList_GET_SIZE(headers) > self.most_headers:
                self.most_headers = PyList_GET_SIZE(headers)
            kind, timestamp_ms = message.timestamp()
            if not kind:
                timestamp_ms = NO_TIMESTAMP
            return named(<type>Record, (
                message.partition(), message.offset(), timestamp_ms, message.key(), message.value(), headers
            ))
        raise StopIteration


cdef object _headers(object message):
    cdef object headers
    try:
        headers = message.headers()
    except (UnicodeDecodeError, SystemError):
        return None
    # The library may return a result and leave an exception pending, see `kafka.input.headers_of`.
    if PyErr_Occurred() != NULL:
        PyErr_Clear()
        return None
    return headers or []
