"""Group metadata in the form of the client library, whose content only the cluster knows."""

from __future__ import annotations

from sidecar.kafka.input import decode_membership


def pack(member: str, generation: int) -> bytes:
    """Return what a consumer hands to a producer."""
    return b"CGMDv2:" + generation.to_bytes(4, "little", signed=True) + b"group\0" + member.encode() + b"\0\0"


def unpack(membership: bytes) -> tuple[str, int]:
    """Return member and generation."""
    generation, member = decode_membership(membership)
    return member.decode(), generation
