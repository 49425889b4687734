"""Produces what the Python client cannot make, header names that are not UTF-8, by librdkafka's own functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import confluent_kafka

_PRODUCER: Final = 0
_TOPIC, _PARTITION, _VALUE, _MESSAGE_FLAGS, _HEADER = 1, 3, 4, 7, 9
_COPY: Final = 0x2
_FLUSH_MS: Final = 15_000
_ERROR_BYTES: Final = 512


class _Memory(ctypes.Structure):
    _fields_ = (("start", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_ssize_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("i", ctypes.c_int),
        ("i32", ctypes.c_int32),
        ("memory", _Memory),
        ("header", _Header),
        ("padding", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t: one tagged argument of rd_kafka_produceva."""

    _fields_ = (("tag", ctypes.c_int), ("u", _Union))


def produce_raw(
    bootstrap: str,
    topic: str,
    partition: int,
    value: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    times: int = 1,
) -> None:
    """Produce one record, or several of the same, and return when the broker has them."""
    library = _library()
    message = ctypes.create_string_buffer(_ERROR_BYTES)
    conf = library.rd_kafka_conf_new()
    set_ = library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap.encode(), message, _ERROR_BYTES)
    assert set_ == 0, message.value
    producer = library.rd_kafka_new(_PRODUCER, conf, message, _ERROR_BYTES)
    assert producer, message.value
    try:
        arguments = [
            _argument(_TOPIC, text=topic.encode()),
            _argument(_PARTITION, i32=partition),
            _argument(_MESSAGE_FLAGS, i=_COPY),
            _argument(_VALUE, memory=_Memory(value, len(value))),
            *(_argument(_HEADER, header=_Header(name, value, len(value))) for name, value in headers),
        ]
        for _ in range(times):
            error = library.rd_kafka_produceva(producer, (_Argument * len(arguments))(*arguments), len(arguments))
            assert not error, library.rd_kafka_error_string(error)
        assert library.rd_kafka_flush(producer, _FLUSH_MS) == 0, "the broker did not take it in time"
    finally:
        library.rd_kafka_destroy(producer)


def _argument(tag: int, **value: Any) -> _Argument:
    return _Argument(tag, _Union(**value))


def _library() -> ctypes.CDLL:
    """Return the very librdkafka that the Python client has loaded."""
    package = Path(confluent_kafka.__file__).parent
    found = [*package.parent.glob("confluent_kafka.libs/librdkafka-*"), *package.glob(".dylibs/librdkafka*")]
    assert found, f"no librdkafka beside {package}"
    library = ctypes.CDLL(str(found[0]))
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_conf_set.argtypes = (pointer, text, text, text, size)
    library.rd_kafka_new.argtypes = (ctypes.c_int, pointer, text, size)
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_produceva.argtypes = (pointer, pointer, size)
    library.rd_kafka_produceva.restype = pointer
    library.rd_kafka_error_string.argtypes = (pointer,)
    library.rd_kafka_error_string.restype = text
    library.rd_kafka_flush.argtypes = (pointer, ctypes.c_int)
    library.rd_kafka_destroy.argtypes = (pointer,)
    return library
