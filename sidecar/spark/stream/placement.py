"""The key of each input partition in the stateful operator.

Spark places a key by its hash, so the keys 0, 1, 2, ... would meet in few of the state partitions. The key of a
partition is the least number of the form `partition + n · 65536` that Spark places in state partition
`partition mod count`. It depends on nothing else, so it stays when the input topic grows.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 65_536
"""The most input partitions."""

_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def key_of(partition: int, state_partitions: int) -> int:
    """Return the key of an input partition.

    Args:
        partition: A partition of the input topic, below STEP.
        state_partitions: The state partitions of the stateful operator; fixed for the life of a checkpoint.
    """
    key = partition
    while _murmur3(key) % state_partitions != partition % state_partitions:
        key += STEP
    return key


def state_partition_of(partition: int, state_partitions: int) -> int:
    """Return the state partition that has the state of an input partition."""
    return partition % state_partitions


def partition_of(key: int) -> int:
    """Return the input partition of a key."""
    return key % STEP


def _murmur3(value: int) -> int:
    """Return Spark's hash of an int, as a signed number of 32 bits."""
    k1 = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h1 = (_rotated(_SEED ^ k1, 13) * 5 + 0xE6546B64) & _MASK
    h1 ^= 4
    h1 = (h1 ^ h1 >> 16) * 0x85EBCA6B & _MASK
    h1 = (h1 ^ h1 >> 13) * 0xC2B2AE35 & _MASK
    h1 ^= h1 >> 16
    return h1 - (1 << 32) if h1 >> 31 else h1


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 32 - by) & _MASK
