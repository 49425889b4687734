"""Bounds calls of the client library that can wait forever.

Asked for a group's coordinator, librdkafka 2.16 forgets the question after three answers that there is none yet, which
take a third of a second (rdkafka_coord.c, `rd_kafka_coord_req_handle_FindCoordinator`). Then
`send_offsets_to_transaction` waits until the connection to some broker changes, whatever its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from sidecar.errors import TransactionFailed

HANGS_S: Final = 24.0
"""Longer than any call should wait, and than the broker keeps a transaction open."""


def bounded(call: Callable[[], None], name: str) -> None:
    """Call in a separate thread, which is abandoned when the call hangs.

    Raises:
        TransactionFailed: The call hangs: its producer must not be used again. Or what the call raises.
    """
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to who waits
            ended.put(error)
        else:
            ended.put(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        error = ended.get(timeout=HANGS_S)
    except Empty:
        text = f"{name}: no answer within {HANGS_S:g} s"
        raise TransactionFailed(text, unknown=False, replace=True) from None
    if error is not None:
        raise error
