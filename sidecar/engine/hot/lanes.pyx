"""The digest of a lane, and whether a timer may have another one ahead."""

from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset

from sidecar.engine.hot.wire cimport put_bytes, read_u16, read_u64

from sidecar.engine.crossings import BUCKETS
from sidecar.engine.rows import LANE

cdef uint16_t _BUCKETS = BUCKETS
cdef Py_ssize_t _LANE_AT = LANE.start
cdef Py_ssize_t _LANE_END = LANE.stop

# BLAKE2b, RFC 7693.
cdef enum:
    BLOCK_BYTES = 128
    DIGEST_BYTES = 16
    ROUNDS = 12
cdef uint64_t _INITIAL[8]
cdef uint8_t _ORDER[ROUNDS][16]
for _at, _word in enumerate((
    0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
    0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
)):
    _INITIAL[_at] = _word
for _at, _order in enumerate((
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
    "0123456789abcdef", "ea489fd61c02b753",
)):
    for _word in range(16):
        _ORDER[_at][_word] = int(_order[_word], 16)


def lane_of(str origin, bytes key):
    """Return what `engine.lanes.lane_of` returns."""
    cdef uint8_t small[BLOCK_BYTES]
    cdef Py_ssize_t name_length
    cdef const char* name = PyUnicode_AsUTF8AndSize(origin, &name_length)
    cdef Py_ssize_t length = name_length + 1 + PyBytes_GET_SIZE(key)
    cdef uint8_t* text = small
    if length > BLOCK_BYTES:
        text = <uint8_t*>PyMem_Malloc(length)
        if text == NULL:
            raise MemoryError
    cdef uint8_t* to = put_bytes(text, name, name_length)
    to[0] = 0
    put_bytes(to + 1, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    cdef bytes digest = _digest(text, length)
    if text != small:
        PyMem_Free(text)
    return digest


cdef bytes _digest(const uint8_t* text, Py_ssize_t length):
    cdef uint64_t state[8]
    cdef uint8_t last[BLOCK_BYTES]
    cdef uint8_t digest[DIGEST_BYTES]
    cdef Py_ssize_t at = 0
    cdef int each
    memcpy(state, _INITIAL, sizeof(state))
    state[0] ^= 0x01010000 ^ DIGEST_BYTES
    while length - at > BLOCK_BYTES:
        _compress(state, text + at, at + BLOCK_BYTES, False)
        at += BLOCK_BYTES
    memset(last, 0, BLOCK_BYTES)
    memcpy(last, text + at, length - at)
    _compress(state, last, length, True)
    for each in range(DIGEST_BYTES):
        digest[each] = <uint8_t>(state[each // 8] >> (8 * (each % 8)))
    return PyBytes_FromStringAndSize(<char*>digest, DIGEST_BYTES)


cdef inline uint64_t _turned(uint64_t word, int by) noexcept nogil:
    return (word >> by) | (word << (64 - by))


cdef inline void _mix(uint64_t* v, int a, int b, int c, int d, uint64_t one, uint64_t other) noexcept nogil:
    v[a] += v[b] + one
    v[d] = _turned(v[d] ^ v[a], 32)
    v[c] += v[d]
    v[b] = _turned(v[b] ^ v[c], 24)
    v[a] += v[b] + other
    v[d] = _turned(v[d] ^ v[a], 16)
    v[c] += v[d]
    v[b] = _turned(v[b] ^ v[c], 63)


cdef void _compress(uint64_t* state, const uint8_t* block, uint64_t length, bint is_last) noexcept nogil:
    cdef uint64_t v[16]
    cdef uint64_t m[16]
    cdef const uint8_t* order
    cdef int at, byte
    for at in range(16):
        m[at] = 0
        for byte in range(8):
            m[at] |= <uint64_t>block[at * 8 + byte] << (8 * byte)
    for at in range(8):
        v[at] = state[at]
        v[at + 8] = _INITIAL[at]
    v[12] ^= length
    if is_last:
        v[14] = ~v[14]
    for at in range(ROUNDS):
        order = _ORDER[at]
        _mix(v, 0, 4, 8, 12, m[order[0]], m[order[1]])
        _mix(v, 1, 5, 9, 13, m[order[2]], m[order[3]])
        _mix(v, 2, 6, 10, 14, m[order[4]], m[order[5]])
        _mix(v, 3, 7, 11, 15, m[order[6]], m[order[7]])
        _mix(v, 0, 5, 10, 15, m[order[8]], m[order[9]])
        _mix(v, 1, 6, 11, 12, m[order[10]], m[order[11]])
        _mix(v, 2, 7, 8, 13, m[order[12]], m[order[13]])
        _mix(v, 3, 4, 9, 14, m[order[14]], m[order[15]])
    for at in range(8):
        state[at] ^= v[at] ^ v[at + 8]


def may_wait(array until_ms, bytes row, bytes key):
    """Return what `Crossings.may_wait` returns when everything is known.

    Args:
        until_ms: Of the crossings.
        row: The timer's own in the index of lanes.
        key: The timer's own.
    """
    cdef uint16_t bucket
    if PyBytes_GET_SIZE(row) < _LANE_END or PyBytes_GET_SIZE(key) < 8 or len(until_ms) < _BUCKETS:
        raise IndexError(f"row {row!r} or key {key!r} is too short, or nothing is known of crossings")
    bucket = read_u16(<const uint8_t*>PyBytes_AS_STRING(row) + _LANE_AT) % _BUCKETS
    return <int64_t>read_u64(<const uint8_t*>PyBytes_AS_STRING(key)) < until_ms.data.as_longlongs[bucket]
