"""The configuration of the internal topics, for manifests that create them in place of the program."""

from __future__ import annotations

import json

from sidecar.kafka.admin import topics


def text() -> str:
    """Return deploy/helm/retry-sidecar/files/topics.json."""
    return (
        json.dumps(
            {
                "changelog": topics.CHANGELOG_CONFIG,
                "status": topics.STATUS_CONFIG,
                "headroomBytes": topics.HEADROOM_BYTES,
                "changelogBytesMin": topics.CHANGELOG_BYTES_MIN,
            },
            indent=2,
        )
        + "\n"
    )
