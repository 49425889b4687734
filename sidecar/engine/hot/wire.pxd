"""Big-endian integers, headers and named tuples. Whoever writes has counted the bytes first."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef inline uint16_t read_u16(const uint8_t* at) noexcept nogil:
    return (<uint16_t>at[0] << 8) | at[1]


cdef inline uint32_t read_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>read_u16(at) << 16) | read_u16(at + 2)


cdef inline uint64_t read_u64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>read_u32(at) << 32) | read_u32(at + 4)


cdef inline uint8_t* put_u16(uint8_t* at, uint16_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value
    return at + 2


cdef inline uint8_t* put_u32(uint8_t* at, uint32_t value) noexcept nogil:
    return put_u16(put_u16(at, <uint16_t>(value >> 16)), <uint16_t>value)


cdef inline uint8_t* put_u64(uint8_t* at, uint64_t value) noexcept nogil:
    return put_u32(put_u32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t* put_bytes(uint8_t* at, const void* source, Py_ssize_t length) noexcept nogil:
    memcpy(at, source, length)
    return at + length


cdef inline bint number_of(object value, int64_t* number):
    """Read the ASCII digits of bytes. False: there are none, others, or more than 18, which may be too large."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(value)
    cdef Py_ssize_t at
    if not 1 <= PyBytes_GET_SIZE(value) <= 18:
        return False
    number[0] = 0
    for at in range(PyBytes_GET_SIZE(value)):
        if text[at] < 48 or text[at] > 57:
            return False
        number[0] = number[0] * 10 + (text[at] - 48)
    return True


cdef inline bint is_text(object value):
    """Whether bytes are ASCII and not empty; Python decides on what else is text."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(value)
    cdef Py_ssize_t at
    for at in range(PyBytes_GET_SIZE(value)):
        if text[at] >= 128:
            return False
    return PyBytes_GET_SIZE(value) > 0


cdef inline bint is_value(object value):
    """Whether it is bytes, or nothing."""
    return value is None or type(value) is bytes


cdef inline bint is_plain(object key, object value, object headers):
    """Whether a record has the types of a plain one."""
    return type(headers) is list and is_value(key) and is_value(value)


cdef inline bint is_header(object header):
    """Whether it is a name and a value."""
    return (
        PyTuple_CheckExact(header) and PyTuple_GET_SIZE(header) == 2
        and type(<object>PyTuple_GET_ITEM(header, 0)) is str and is_value(<object>PyTuple_GET_ITEM(header, 1))
    )


cdef inline uint8_t* put_number(uint8_t* at, uint64_t value) noexcept nogil:
    """Write a number as text: at most 20 bytes."""
    cdef uint8_t digits[20]
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value = value // 10
        if not value:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef struct Span:
    # A timer and where it is found: an entry inside the value of a block, or the item of a batch whose turn it is.
    uint64_t due_ms, offset
    const uint8_t* start
    Py_ssize_t length, turn


cdef inline int sooner(const void* one, const void* other) noexcept nogil:
    cdef const Span* a = <const Span*>one
    cdef const Span* b = <const Span*>other
    if a.due_ms != b.due_ms:
        return -1 if a.due_ms < b.due_ms else 1
    if a.offset != b.offset:
        return -1 if a.offset < b.offset else 1
    return -1 if a.turn < b.turn else a.turn > b.turn


cdef inline bytes lane_row_of(bytes prefix, bytes lane, uint64_t offset, uint64_t first_ms):
    """Return what `Rows.lane_row` returns."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(prefix) + PyBytes_GET_SIZE(lane)
    cdef bytes row = PyBytes_FromStringAndSize(NULL, length + 16)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(row)
    to = put_bytes(to, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    to = put_bytes(to, PyBytes_AS_STRING(lane), PyBytes_GET_SIZE(lane))
    put_u64(put_u64(to, offset), first_ms)
    return row


cdef extern from "Python.h":
    object PyType_GenericAlloc(type kind, Py_ssize_t items)


cdef inline object named(type kind, tuple fields):
    """Return a named tuple of these fields, in a third of the time that `tuple.__new__` takes."""
    cdef Py_ssize_t at
    cdef object made = PyType_GenericAlloc(kind, PyTuple_GET_SIZE(fields))
    for at in range(PyTuple_GET_SIZE(fields)):
        field = <object>PyTuple_GET_ITEM(fields, at)
        Py_INCREF(field)
        PyTuple_SET_ITEM(made, at, field)
    return made
