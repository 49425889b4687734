"""Tells what of a micro-batch was sent before, by the last checkpoints in the changelog."""

from __future__ import annotations

from typing import NamedTuple

from sidecar import __version__
from sidecar.errors import CommandFailed
from sidecar.settings import Settings
from sidecar.spark.marks import Mark, MarkedCheckpoint
from sidecar.spark.stream.outputs import PlanOutput


class Progress:
    """Compares outputs with what was sent.

    Args:
        settings: The settings, for what errors say.
        checkpoint: The id of the Spark checkpoint.
    """

    def __init__(self, settings: Settings, checkpoint: str) -> None:
        self._settings = settings
        self._checkpoint = checkpoint

    def is_sent(self, batch: int, output: PlanOutput, standing: MarkedCheckpoint, former: str) -> bool:
        """Return whether an output was committed.

        Args:
            batch: The micro-batch.
            output: What it sends.
            standing: The last checkpoint of its partition.
            former: The version that began the micro-batch, if it was another one.

        Raises:
            CommandFailed: Something else was committed, or it is not known what was.
        """
        if not output.moves:
            return False
        mark = standing.mark
        if standing.reached < output.began:
            raise self._lost(output, standing)
        if mark is None or mark.reached <= output.began:
            return False
        if mark.checkpoint != self._checkpoint or mark.batch > batch:
            raise self._refused(output, mark)
        found = _sent_of(batch, output, mark)
        if found is not None:
            if output.before >= found.sequence:
                return False
            if output.after < found.sequence and not output.last:
                return True
            if output.after == found.sequence and output.digest == found.digest:
                return True
        raise self._differs(batch, output, former)

    def _differs(self, batch: int, output: PlanOutput, former: str) -> CommandFailed:
        begun_by = f"version {former}" if former else "the version and the settings"
        return CommandFailed(
            f"micro-batch {batch} was partly sent to Kafka before Spark completed it, and this version, {__version__}, "
            f"makes other records of it for partition {output.partition} of {self._settings.input_topic}: messages "
            f"would be lost or come twice, so it is not sent. Run {begun_by} that began it once more on this "
            "checkpoint, stop the query when it has logged `query_started` and is ready, then start this version again"
        )

    def _refused(self, output: PlanOutput, mark: Mark) -> CommandFailed:
        return CommandFailed(
            f"partition {output.partition} of {self._settings.input_topic} was committed up to sequence "
            f"{mark.reached} by checkpoint {mark.checkpoint}, and this micro-batch of {self._checkpoint} goes from "
            f"{output.before} to {output.after}: another query runs for this application, or the checkpoint "
            "is an old copy. Stop the other query, or continue from the newest checkpoint."
        )

    def _lost(self, output: PlanOutput, standing: MarkedCheckpoint) -> CommandFailed:
        return CommandFailed(
            f"the state of partition {output.partition} of {self._settings.input_topic} is at sequence {output.began}, "
            f"and the changelog {self._settings.changelog_topic} says that only {standing.reached} was sent: it was "
            "deleted, created again or cut off, so it is not known whether this micro-batch was sent already. If it "
            "belongs to another application, correct STORE_NAME. Otherwise start `spark run` once with "
            "--restore-marks: it goes on from the state, and what the last micro-batch sent may come twice"
        )


class _Sent(NamedTuple):
    """How far what begins where an output's step begins was sent."""

    sequence: int
    digest: str


def _sent_of(batch: int, output: PlanOutput, mark: Mark) -> _Sent | None:
    """Return how far the plans of an output's step were sent; None: the mark does not continue from where it began."""
    if mark.batch == batch and not output.ahead:
        # What was sent ahead of the next step tells that this one is complete.
        return None if mark.ahead and output.before >= mark.sequence else _Sent(mark.sequence, mark.digest)
    return _Sent(mark.reached, mark.ahead_digest) if mark.ahead and mark.sequence == output.began else None
