"""Permission to make changes and read payloads."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from starlette.exceptions import HTTPException

REALM: Final = "retry-sidecar"
CHALLENGE: Final = f'Bearer realm="{REALM}", Basic realm="{REALM}"'

_bearer = HTTPBearer(auto_error=False, description="API_TOKEN")
_basic = HTTPBasic(auto_error=False, realm=REALM, description="Any user name, with API_TOKEN as the password")


async def offered_token(
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    basic: Annotated[HTTPBasicCredentials | None, Security(_basic)],
) -> str | None:
    """Return the token that a request brings, as bearer or as the password of HTTP Basic."""
    if bearer is not None:
        return bearer.credentials
    return None if basic is None else basic.password


OfferedToken = Annotated[str | None, Security(offered_token)]


class Gate:
    """Admits requests for changes and payloads.

    Args:
        token: API_TOKEN; None when it is not set.
        loopback: Whether only this machine can reach the server.
    """

    def __init__(self, token: str | None, *, loopback: bool) -> None:
        self._token = None if token is None else token.encode()
        self._loopback = loopback

    async def change(self, request: Request, offered: OfferedToken) -> None:
        """Admit a call that changes something. Raises HTTPException 401 or 403."""
        self.admit(request, offered, "Requests that change something")

    def admit(self, request: Request, offered: str | None, what: str) -> None:
        """Admit a call that needs permission.

        Args:
            request: The call.
            offered: The token that it brings.
            what: The name of such calls, as the beginning of a sentence.

        Raises:
            HTTPException: 401 without the token that is set, 403 where it cannot be allowed at all.
        """
        if self._token is not None:
            if offered is None or not hmac.compare_digest(offered.encode(), self._token):
                raise HTTPException(401, f"{what} need the API_TOKEN.", {"www-authenticate": CHALLENGE})
        elif not self._loopback:
            raise HTTPException(403, f"{what} are refused on this address until KAFKA_RETRY_API_TOKEN is set.")
        elif not _is_local(request.headers.get("host", "")):
            # A page of another site can have its name lead to this machine; the browser then shows it the answers.
            raise HTTPException(
                403, f"{what} are answered only under a loopback name of this machine, such as 127.0.0.1."
            )
        if _is_of_another_site(request):
            # The browser sends a password that it remembers with what any page asks for.
            raise HTTPException(403, f"{what} are refused from the pages of another site.")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_local(host: str) -> bool:
    name = _hostname(host)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _is_of_another_site(request: Request) -> bool:
    """Tell whether a browser says that another site's page makes the call; other clients say nothing."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host")
