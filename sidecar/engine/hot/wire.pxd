"""Big-endian integers and MessagePack, by pointer. Whoever writes has counted the bytes first."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
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


# Lengths are at most LENGTH_MAX: callers refuse anything longer.
cdef enum:
    LENGTH_MAX = 0x7fffffff


cdef inline Py_ssize_t bin_size(Py_ssize_t length) noexcept nogil:
    """The head of a bin and its bytes."""
    return length + (2 if length < 0x100 else 3 if length < 0x10000 else 5)


cdef inline uint8_t* put_bin(uint8_t* at, const void* source, Py_ssize_t length) noexcept nogil:
    if length < 0x100:
        at[0] = 0xc4
        at[1] = <uint8_t>length
        at += 2
    elif length < 0x10000:
        at[0] = 0xc5
        at = put_u16(at + 1, <uint16_t>length)
    else:
        at[0] = 0xc6
        at = put_u32(at + 1, <uint32_t>length)
    return put_bytes(at, source, length)


cdef inline Py_ssize_t str_size(Py_ssize_t length) noexcept nogil:
    """The head of a str and its bytes."""
    return length + (1 if length < 32 else 2 if length < 0x100 else 3 if length < 0x10000 else 5)


cdef inline uint8_t* put_str(uint8_t* at, const void* source, Py_ssize_t length) noexcept nogil:
    if length < 32:
        at[0] = 0xa0 | <uint8_t>length
        at += 1
    elif length < 0x100:
        at[0] = 0xd9
        at[1] = <uint8_t>length
        at += 2
    elif length < 0x10000:
        at[0] = 0xda
        at = put_u16(at + 1, <uint16_t>length)
    else:
        at[0] = 0xdb
        at = put_u32(at + 1, <uint32_t>length)
    return put_bytes(at, source, length)


cdef inline Py_ssize_t array_size(Py_ssize_t count) noexcept nogil:
    """The head of an array."""
    return 1 if count < 16 else 3 if count < 0x10000 else 5


cdef inline uint8_t* put_array(uint8_t* at, Py_ssize_t count) noexcept nogil:
    if count < 16:
        at[0] = 0x90 | <uint8_t>count
        return at + 1
    if count < 0x10000:
        at[0] = 0xdc
        return put_u16(at + 1, <uint16_t>count)
    at[0] = 0xdd
    return put_u32(at + 1, <uint32_t>count)


cdef struct Piece:
    # A str or bin inside a buffer; `length` is -1 for nil.
    const uint8_t* start
    Py_ssize_t length


# Each reader returns where the next value begins, or NULL: the bytes are of another kind, or end too early.
cdef inline const uint8_t* read_bin(const uint8_t* at, const uint8_t* end, Piece* piece) noexcept nogil:
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
    if length > end - at:
        return NULL
    piece.start = at
    piece.length = length
    return at + length


cdef inline const uint8_t* read_str(const uint8_t* at, const uint8_t* end, Piece* piece) noexcept nogil:
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
    if length > end - at:
        return NULL
    piece.start = at
    piece.length = length
    return at + length


cdef inline const uint8_t* read_array(const uint8_t* at, const uint8_t* end, Py_ssize_t* count) noexcept nogil:
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


cdef inline bint number_of(const uint8_t* text, Py_ssize_t length, int64_t* number) noexcept nogil:
    """Read ASCII digits. False: there are none, others, or more than 18, which may be too large."""
    cdef int64_t value = 0
    cdef Py_ssize_t at
    if length < 1 or length > 18:
        return False
    for at in range(length):
        if text[at] < 48 or text[at] > 57:
            return False
        value = value * 10 + (text[at] - 48)
    number[0] = value
    return True


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
