"""The other instances of the group, for what one of them has or all of them do."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread
from pydantic import BaseModel, ValidationError

from sidecar.api.source import Source
from sidecar.errors import CommandFailed

log = structlog.get_logger(__name__)
B = TypeVar("B", bound=BaseModel)

ASKED_AT_A_TIME: Final = 8
FORWARDED: Final = "x-retry-sidecar-forwarded"
"""A request with this header comes from another instance: it is answered for the own partitions and not sent on."""


class Others(Protocol):
    """Changes something at other instances; called from worker threads."""

    def send(self, method: str, url: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of a call with the token. Raises CommandFailed when there is no answer in time.

        Args:
            method: POST, PUT or DELETE.
            url: The address of the instance.
            path: Path and query.
            body: JSON.
        """
        ...


class Peers(Others, Protocol):
    """Asks other instances, too."""

    def get(self, url: str, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET. Raises CommandFailed when there is no answer in time.

        Args:
            url: The address of the instance.
            path: Path and query.
        """
        ...


class PeerResponse(NamedTuple):
    """What another instance answers."""

    instance: str
    url: str
    status: int
    """0: there is no answer."""
    body: bytes
    problem: str
    """Why there is none."""

    def read(self, model: type[B], statuses: Collection[int] = (200, 202)) -> B | None:
        """Return an answer with one of these statuses, None for anything else: any program may answer at an address."""
        if self.status not in statuses:
            return None
        try:
            return model.model_validate_json(self.body)
        except ValidationError as cause:
            log.warning("owner_not_understood", model=model.__name__, faults=cause.error_count())
            return None


class OtherInstances:
    """The instances that own partitions, without this one; asked a bounded number at a time.

    Args:
        source: Has the views of the group.
        peers: Asks an instance.
        instance_id: Of this process.
    """

    def __init__(self, source: Source, peers: Peers, instance_id: str) -> None:
        self._source = source
        self._peers = peers
        self._instance_id = instance_id
        self._asking = CapacityLimiter(ASKED_AT_A_TIME)

    async def ask_all(self, method: str, path: str, body: bytes | None = None) -> list[PeerResponse]:
        """Return the answer of each, by name."""
        owners = {view.owner: view.url for view in self._source.views() if view.owner}
        owners.pop(self._instance_id, None)
        asked = [self.ask(owner, url or "", method, path, body) for owner, url in sorted(owners.items())]
        return list(await asyncio.gather(*asked))

    async def ask(self, instance: str, url: str, method: str, path: str, body: bytes | None = None) -> PeerResponse:
        """Return the answer of one."""
        if not url:
            return PeerResponse(instance, url, 0, b"", f"{instance} does not report its URL")
        call = partial(self._peers.get, url, path)
        if method != "GET":
            call = partial(self._peers.send, method, url, path, body)
        try:
            return PeerResponse(instance, url, *await to_thread.run_sync(call, limiter=self._asking), "")
        except CommandFailed as cause:
            log.info("owner_not_reached", url=url, reason=str(cause))
            return PeerResponse(instance, url, 0, b"", str(cause))
