"""Permission: who asks, what a call needs, and why it is refused. Unknown calls need most."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

REALM: Final = "retry-sidecar"
CHALLENGE: Final = f'Bearer realm="{REALM}", Basic realm="{REALM}"'
PROBES: Final = frozenset({"/health", "/livez", "/readyz", "/actuator/health"})
METRICS: Final = "/metrics"
OPEN_PATHS: Final = PROBES | {
    *(METRICS, "/pending", "/pending/histogram", "/partitions", "/activity", "/origins"),
    *("/", "/ui", "/docs", "/openapi.json"),
}
"""What a `GET` without a token may have: counts and states, as /metrics has them too, and this program's own pages."""
OPEN_FOLDERS: Final = ("/ui/", "/docs-assets/")
USER_CHARS_MAX: Final = 64
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
"""Of the others no call exists."""
CHANGES: Final = "Requests that change something"
READS: Final = "Messages, settings and outcomes"
PAYLOADS: Final = "Payloads"


class Caller(StrEnum):
    """Who asks, by the token that the request brings."""

    STRANGER = "stranger"
    READER = "reader"
    OPERATOR = "operator"


class Need(StrEnum):
    """What a call needs."""

    NOTHING = "nothing"
    READ = "read"
    CHANGE = "change"


class Refusal(NamedTuple):
    """Why a call is not admitted."""

    status: int
    message: str

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": CHALLENGE} if self.status == 401 else {}


CALLER: Final = ContextVar("caller", default=Caller.STRANGER)
"""Who asks, for all that the request at hand does."""


def needed(method: str, path: str) -> Need:
    """Return what a call needs; `path` has no slash at its end."""
    if method not in METHODS:
        return Need.NOTHING
    if method in {"GET", "HEAD"}:
        return Need.NOTHING if path in OPEN_PATHS or path.startswith(OPEN_FOLDERS) else Need.READ
    # It is computed from the request alone.
    if method == "PUT" and path.startswith("/connector-plugins/") and path.endswith("/config/validate"):
        return Need.READ
    return Need.CHANGE


class Gate:
    """Admits requests.

    Args:
        tokens: API_TOKEN: whoever has one may do all.
        read_tokens: API_READ_TOKEN: whoever has one may read.
        loopback: Whether only this machine can reach the server.
        open_reads: API_READ=open: reading needs no token.
        own_hosts: Names under which the server is asked besides those of loopback.
    """

    def __init__(
        self,
        tokens: Sequence[str] = (),
        read_tokens: Sequence[str] = (),
        *,
        loopback: bool,
        open_reads: bool = False,
        own_hosts: Collection[str] = (),
    ) -> None:
        self._tokens = [token.encode() for token in tokens]
        self._read_tokens = [token.encode() for token in read_tokens]
        self._loopback = loopback
        self._open_reads = open_reads
        self._own_hosts = frozenset(own_hosts)

    def caller(self, scope: Scope) -> Caller:
        """Return who asks."""
        offered = _offered(Headers(scope=scope).get("authorization", ""))
        if offered is None:
            return Caller.STRANGER
        if _is_one_of(offered, self._tokens):
            return Caller.OPERATOR
        return Caller.READER if _is_one_of(offered, self._read_tokens) else Caller.STRANGER

    def refusal(self, scope: Scope, caller: Caller) -> Refusal | None:
        """Return why a call is refused, None when it is admitted; its body need not be there yet."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._loopback and caller is Caller.STRANGER and not self._is_own(host):
            # A page of another site can have its name lead to this machine; the browser then shows it the answers.
            text = "This address answers only under a loopback name of this machine, such as 127.0.0.1"
            return Refusal(403, f"{text}, or with the API_TOKEN; HTTP_ADVERTISED_URL can name another one.")
        need = needed(scope["method"], scope["path"])
        if need is Need.NOTHING:
            return None
        if need is Need.READ:
            refusal = None if self._open_reads else self._unread(caller, READS)
        else:
            refusal = self._unchanged(caller)
        if refusal is None and _is_of_another_site(headers):
            # The browser sends a password that it remembers with what any page asks for.
            what = READS if need is Need.READ else CHANGES
            return Refusal(403, f"{what} are refused from the pages of another site.")
        return refusal

    def admit_payload(self) -> None:
        """Admit the request at hand to a payload. Raises HTTPException 401 or 403."""
        if (refusal := self._unread(CALLER.get(), PAYLOADS)) is not None:
            raise HTTPException(refusal.status, refusal.message, refusal.headers)

    def _unread(self, caller: Caller, what: str) -> Refusal | None:
        if caller is not Caller.STRANGER:
            return None
        if self._tokens or self._read_tokens:
            return Refusal(401, f"{what} need the API_TOKEN or the API_READ_TOKEN.")
        if not self._loopback:
            open_reads = "" if what is PAYLOADS else ", or KAFKA_RETRY_API_READ=open"
            return Refusal(403, f"{what} are refused on this address until KAFKA_RETRY_API_TOKEN is set{open_reads}.")
        return None

    def _unchanged(self, caller: Caller) -> Refusal | None:
        if caller is Caller.OPERATOR:
            return None
        if caller is Caller.READER:
            return Refusal(403, f"{CHANGES} need the API_TOKEN: the API_READ_TOKEN reads only.")
        if self._tokens:
            return Refusal(401, f"{CHANGES} need the API_TOKEN.")
        if not self._loopback:
            return Refusal(403, f"{CHANGES} are refused on this address until KAFKA_RETRY_API_TOKEN is set.")
        return None

    def _is_own(self, host: str) -> bool:
        name = _hostname(host)
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost" or name in self._own_hosts


def user_of(authorization: str) -> str:
    """Return the user name that a request gives with HTTP Basic, fit for a log line; empty when it gives none.

    Whoever has the token chooses the name: it says who changed something, and proves nothing.
    """
    scheme, _, given = authorization.partition(" ")
    try:
        user = base64.b64decode(given, validate=True).decode().partition(":")[0] if scheme.lower() == "basic" else ""
    except ValueError:
        return ""
    return "".join(each if each.isprintable() else "?" for each in user[:USER_CHARS_MAX])


def _offered(authorization: str) -> str | None:
    """Return the token that a request brings, as bearer or as the password of HTTP Basic."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _is_one_of(offered: str, tokens: Sequence[bytes]) -> bool:
    return any(hmac.compare_digest(offered.encode(), token) for token in tokens)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_of_another_site(headers: Headers) -> bool:
    """Tell whether a browser says that another site's page makes the call; other clients say nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
