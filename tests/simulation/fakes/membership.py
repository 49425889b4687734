"""Group metadata as bytes, which only the cluster reads."""

from __future__ import annotations


def pack(member: str, generation: int) -> bytes:
    """Return what a consumer hands to a producer."""
    return f"{generation}:{member}".encode()


def unpack(membership: bytes) -> tuple[str, int]:
    """Return member and generation."""
    generation, member = membership.decode().split(":", 1)
    return member, int(generation)
