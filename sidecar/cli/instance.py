"""The HTTP API as commands use it: one that is named, or any instance that the status topic shows."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
import httpx
import structlog

from sidecar import log
from sidecar.clock import SystemClock
from sidecar.contract.signature import tokens_of
from sidecar.errors import CommandFailed
from sidecar.serving.tls import client_context
from sidecar.settings import Settings

if TYPE_CHECKING:
    from sidecar.serving.group_view import ClusterView

F = TypeVar("F", bound=Callable[..., Any])

ASK_S: Final = 15.0
"""Longest silence: a change waits up to 5 s for its owner, and a page for owners that hang."""
WAIT_MAX_S: Final = 60.0
"""The longest `Retry-After` that is kept."""
LOOK_S: Final = 0.05
ERROR_S: Final = 5.0
"""The time that brokers may be silent before a message says so."""
STOP_S: Final = 2.0
_PARAMETER: Final = "setting_api_token"
_QUIET: Final = 50
"""The log level `critical`, which nothing here uses."""


class Unanswered(CommandFailed):
    """No answer from this instance: another one may answer, or this one later.

    Args:
        unknown: A change may have been applied all the same.
        wait_s: What the instance asks the caller to wait before it asks again.
    """

    def __init__(self, text: str, *, unknown: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.unknown = unknown
        self.wait_s = wait_s


class Reply(NamedTuple):
    """The answer of an instance."""

    asked: str
    status: int
    body: Any
    """None when it is no JSON."""
    reason: str
    wait_s: float = 0.0
    """`Retry-After`."""

    @property
    def unanswered(self) -> Unanswered | None:
        """The error for an instance that cannot answer now; None for an answer."""
        if self.status == httpx.codes.TOO_MANY_REQUESTS:
            return Unanswered(str(self.refusal()), wait_s=self.wait_s)
        if self.status < httpx.codes.INTERNAL_SERVER_ERROR:
            return None
        applied = self.body.get("applied") if isinstance(self.body, dict) else None
        if applied is None and self.status != httpx.codes.SERVICE_UNAVAILABLE:
            return None
        return Unanswered(str(self.refusal()), unknown=applied != "no", wait_s=self.wait_s)

    def refusal(self) -> CommandFailed:
        """Return the error for an answer that is not what was asked for."""
        said = self.body.get("message") if isinstance(self.body, dict) else None
        hint = "; set the token with --token or API_TOKEN" if self.status == 401 else ""
        return CommandFailed(f"{self.asked} answers {self.status}: {said or self.reason}{hint}")

    def document(self, *names: str) -> dict[str, Any]:
        """Return the body of a good answer. Raises CommandFailed unless it is one with these names."""
        if self.status != 200:
            raise self.refusal()
        stranger = "the server there is not a sidecar"
        if self.body is None:
            raise CommandFailed(f"{self.asked} is not JSON: {stranger}")
        for name in names:
            if not isinstance(self.body, dict) or name not in self.body:
                raise CommandFailed(f"{self.asked} has no {name}: {stranger}")
        return dict(self.body)


def ask(
    url: str,
    method: str,
    path: str,
    token: str | None,
    *,
    query: Mapping[str, str | list[str]] | None = None,
    body: object = None,
    timeout_s: float = ASK_S,
    authorities: Path | None = None,
) -> Reply:
    """Return what an instance answers, whatever it is. Raises Unanswered when nothing does.

    Args:
        url: The address of the instance.
        method: The method.
        path: The path.
        token: API_TOKEN, or API_READ_TOKEN; the first token is sent.
        query: The parameters.
        body: What is sent as JSON.
        timeout_s: Longest silence.
        authorities: HTTP_TLS_CA.
    """
    asked = f"{url}{path}"
    try:
        response = _client(authorities).request(
            method,
            asked,
            params=query,
            json=body,
            headers={} if token is None else {"Authorization": f"Bearer {tokens_of(token)[0]}"},
            timeout=timeout_s,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unanswered(
            f"no sidecar answers at {url} ({error}): start `retry-sidecar run`, or set its address with --url",
            unknown=not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.InvalidURL),
        ) from error
    wait = response.headers.get("retry-after", "")
    wait_s = min(float(wait), WAIT_MAX_S) if wait.isascii() and wait.isdigit() else 0.0
    return Reply(asked, response.status_code, _parsed(response.content), response.reason_phrase, wait_s)


@functools.cache
def _client(authorities: Path | None) -> httpx.Client:
    """Return the HTTP client of this process. It follows no redirect, because the token is for one address only."""
    return httpx.Client(
        # A sidecar is near: a proxy of the environment is for the world outside, and would be asked for localhost too.
        trust_env=False,
        # The authorities of the system, as for Kafka, and not the client's own.
        verify=client_context(authorities),
        # Each connection ends with its answer, so that there is nothing to close.
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


class Instances:
    """Asks one instance, and another one when that does not answer. Any number of threads may share it.

    Args:
        urls: Gives the addresses as they are known now.
        token: API_TOKEN.
        missing: The error when there is no address at all.
        authorities: HTTP_TLS_CA.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        token: str | None,
        missing: str = "",
        *,
        authorities: Path | None = None,
    ) -> None:
        self._urls = urls
        self._token = token
        self._authorities = authorities
        self._missing = missing
        self._good = ""

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | list[str]] | None = None,
        body: object = None,
    ) -> Reply:
        """Return the first answer.

        Raises:
            Unanswered: There is none; the text says of each instance why.
        """
        failed = list[Unanswered]()
        for url in sorted(self._urls(), key=lambda url: url != self._good):
            try:
                reply = ask(url, method, path, self._token, query=query, body=body, authorities=self._authorities)
            except Unanswered as error:
                failed.append(error)
                continue
            if (away := reply.unanswered) is None:
                self._good = url
                return reply
            failed.append(away)
        raise Unanswered(
            "\n".join(map(str, failed)) or self._missing,
            unknown=any(each.unknown for each in failed),
            wait_s=max((each.wait_s for each in failed), default=0.0),
        )


def where_options(function: F) -> F:
    """Give a command --url and --token; it is called with `url`, and the token is in its settings.

    It stands above `settings_options`, whose own flag for the token it fills.
    """

    @functools.wraps(function)
    def command(*args: Any, url: str | None, token: str | None, **kwargs: Any) -> Any:
        if token is not None:
            kwargs[_PARAMETER] = token
        return function(*args, url=None if url is None else address(url), **kwargs)

    options = (
        click.option(
            "--url",
            metavar="http://HOST:PORT",
            help="Ask this instance or `retry-sidecar api` over HTTP.  [default: the cluster of the settings]",
        ),
        click.option("--token", metavar="TOKEN", help="API_TOKEN of the instance.  [default: the setting]"),
    )
    for option in reversed(options):
        option(command)
    return command  # type: ignore[return-value]  # the options that it takes besides are click's business


def address(url: str) -> str:
    """Return the address of an instance without a path behind it. Raises UsageError for any other text."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url: {url!r}: must look like http://localhost:8080")
    return url.rstrip("/").removesuffix("/pending")


@contextmanager
def reach(settings: Settings, url: str | None) -> Iterator[Instances]:
    """Yield the instance that is named, or those that the status topic of the settings shows."""
    if url is not None:
        yield Instances(lambda: (url,), settings.api_token, authorities=settings.http_tls_ca)
        return
    # Here and not above: what is asked by --url needs no librdkafka.
    from sidecar.kafka.config import validate_client_properties  # noqa: PLC0415
    from sidecar.serving.group_view import follow  # noqa: PLC0415

    validate_client_properties(settings)
    with _silence():
        cluster = follow(settings, SystemClock())
        cluster.start()
        try:
            _await_first_reading(cluster)

            def urls() -> list[str]:
                views = cluster.views()
                return list(dict.fromkeys(view.url for view in views if view.owner and view.url))

            missing = (
                f"no instance of {settings.streams_app_id} (STREAMS_APP_ID) shows itself on topic "
                f"{settings.status_topic} at {settings.bootstrap_servers} (BOOTSTRAP_SERVERS)"
                f"{f': {cluster.error}' if cluster.error else ''}; start `retry-sidecar run`, check the settings"
                f"{' and API_TOKEN' if cluster.refused else ''}, or name an instance with --url"
            )
            yield Instances(urls, settings.api_token, missing, authorities=settings.http_tls_ca)
        finally:
            cluster.stop(STOP_S)


def _await_first_reading(cluster: ClusterView) -> None:
    """Return once the status topic was read, or is not going to be."""
    clock, pause = SystemClock(), threading.Event()
    retry_until_s = clock.monotonic_s() + ERROR_S
    while cluster.unread() is not None and not (cluster.error and clock.monotonic_s() >= retry_until_s):
        pause.wait(LOOK_S)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep log lines out of what a command prints; what matters of them is in its errors."""
    before, library = structlog.get_config(), log.librdkafka_logger()
    level = library.level
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_QUIET))
    library.setLevel(_QUIET)
    try:
        yield
    finally:
        library.setLevel(level)
        structlog.configure(**before)
