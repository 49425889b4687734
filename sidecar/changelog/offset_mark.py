"""The mark of a committed input offset: its metadata, which says the checkpoint that it was committed with.

Offsets and changelog are parts of one transaction, and a broker may roll back one part alone. An offset without a mark
was set by an operator or another program.
"""

from __future__ import annotations

import msgspec

from sidecar.changelog.codec import Checkpoint

_BEGINNING = "embedded "


class OffsetMark(msgspec.Struct, array_like=True, frozen=True):
    """What the embedded engine commits with an input offset."""

    sequence: int
    """Of the checkpoint in the same transaction."""
    began_at: int
    """The next input offset before that transaction."""
    input_topic_id: str
    changelog_topic_id: str = ""
    """Of the changelog that has the checkpoint; empty: not noted."""
    set_back_ms: int = 0
    """When records were last ingested that had been ingested before, since an operator had set the offset back; 0: not
    known."""

    def __str__(self) -> str:
        return _BEGINNING + msgspec.json.encode(self).decode()

    def next_offset(self, checkpoint: Checkpoint, input_topic_id: str) -> int:
        """Return the input offset to read from, given the changelog's checkpoint and the current topic.

        It is the checkpoint's, whichever of the two transactions is the later one. Of the transaction after the
        checkpoint it is known where it began: where an operator had set the group's offset, that is elsewhere, and
        before the first checkpoint nothing else tells.
        """
        if self.input_topic_id != input_topic_id:
            return checkpoint.next_input_offset
        is_next = not checkpoint.sequence or self.sequence == checkpoint.sequence + 1
        return self.began_at if is_next else checkpoint.next_input_offset

    @classmethod
    def parse(cls, metadata: str) -> OffsetMark | None:
        """Return the mark, None for metadata of another writer."""
        if not metadata.startswith(_BEGINNING):
            return None
        try:
            return _decode(metadata.removeprefix(_BEGINNING))
        except msgspec.MsgspecError:
            return None


_decode = msgspec.json.Decoder(OffsetMark).decode
