"""Tokens for SASL OAUTHBEARER from a function that OAUTH_CALLBACK names, shared by all clients of the process."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Mapping
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from sidecar.clock import Clock, SystemClock
from sidecar.errors import BrokerUnavailable, CommandFailed, SettingsInvalid, printable
from sidecar.settings import Settings

logger = structlog.get_logger(__name__)

C = TypeVar("C")

CALLBACK: Final = "oauth_cb"
"""The property of a client that has the tokens."""
CALL_S: Final = 8.0
"""Longest wait for the function: a new client waits 10 s for its first token."""
AGAIN_S: Final = 5.0
"""Time after a failure during which the function is not called again."""
LOG_EVERY_S: Final = 60.0
"""Time between two log lines with the same error."""
_ERROR_CHARACTERS: Final = 300
_FAR_S: Final = 100_000_000_000
"""Later than any expiry in seconds: it is in milliseconds."""

TokenFunction = Callable[[str], Any]
"""Called with `sasl.oauthbearer.config`; returns (token, expiry in epoch seconds[, principal[, extensions]])."""


class Token(NamedTuple):
    """A token, in the order that the client library takes."""

    text: str
    expires_s: float
    """Epoch seconds."""
    principal: str
    extensions: dict[str, str]


class _Unfit(Exception):
    """The function gave no token, for a reason that may be shown to everybody."""


class Tokens:
    """The tokens of one function. Any thread may call it: each client does when it is made and when its token ages.

    Args:
        function: Gives the tokens.
        clock: The clock of this machine.
        call_s: Longest wait for the function.
    """

    def __init__(self, function: TokenFunction, clock: Clock, call_s: float = CALL_S) -> None:
        self._function = function
        self._clock = clock
        self._call_s = call_s
        self._lock = threading.Lock()
        self._call: threading.Thread | None = None
        self._token: Token | None = None
        self._fetched_s = 0.0
        self._failed_s = self._logged_s = float("-inf")
        self._error = self._logged = ""

    def __call__(self, config: str | None) -> Token:
        """Return a token with more than half of its lifetime left, the function's newest otherwise.

        Raises:
            CommandFailed: The function failed. The client library keeps its token, and asks again after 10 s.
        """
        with self._lock:
            now_s = self._clock.wall_ms() / 1000
            if self._token is not None and now_s < (self._fetched_s + self._token.expires_s) / 2:
                return self._token
            if self._clock.monotonic_s() - self._failed_s < AGAIN_S:
                raise CommandFailed(self._error)
            try:
                self._token = _checked(self._called(config or ""), now_s)
            except Exception as error:
                self._fail(error)
                raise CommandFailed(self._error) from error
            self._fetched_s, self._error, self._logged = now_s, "", ""
            return self._token

    def blocker(self) -> str | None:
        """Return why no client can log in, None while there is a valid token or none was asked for yet."""
        expired = self._token is None or self._token.expires_s <= self._clock.wall_ms() / 1000
        return f"the login has no valid token: {self._error}" if self._error and expired else None

    def _called(self, config: str) -> Any:
        """Call the function in a separate thread, which is left behind when it does not return in time."""
        if self._call is not None and self._call.is_alive():
            raise _Unfit("an earlier call has not returned")
        ended: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def call() -> None:
            try:
                ended.put((self._function(config), None))
            except BaseException as error:  # noqa: BLE001 - raised where the token is wanted
                ended.put((None, error))

        self._call = threading.Thread(target=call, name="token", daemon=True)
        self._call.start()
        try:
            answer, error = ended.get(timeout=self._call_s)
        except Empty:
            raise _Unfit(f"it did not return within {self._call_s:g} s") from None
        self._call = None  # it has answered, though its thread may live on for a moment
        if error is not None:
            raise error
        return answer

    def _fail(self, error: Exception) -> None:
        now_s = self._failed_s = self._clock.monotonic_s()
        if isinstance(error, _Unfit):
            said = self._error = str(error)
        else:
            # The function's own words may have a secret in them, and errors are shown to whoever asks for the health.
            said = printable(f"{type(error).__name__}: {error}")[:_ERROR_CHARACTERS]
            self._error = f"{type(error).__name__} in the function: the log has its text (token_not_renewed)"
        if said != self._logged or now_s - self._logged_s >= LOG_EVERY_S:
            logger.warning("token_not_renewed", reason=said)
            self._logged, self._logged_s = said, now_s


def tokens_of(settings: Settings) -> Tokens | None:
    """Return the tokens of OAUTH_CALLBACK, None when it is not set.

    Raises:
        SettingsInvalid: There is no such function.
    """
    return None if settings.oauth_callback is None else _tokens(settings.oauth_callback)


def require_token(settings: Settings) -> None:
    """Return when clients can log in as far as tokens are concerned.

    Raises:
        BrokerUnavailable: The function gives no token.
        SettingsInvalid: There is no such function.
    """
    tokens = tokens_of(settings)
    if tokens is None:
        return
    try:
        tokens(settings.client.get("sasl.oauthbearer.config"))
    except CommandFailed as error:
        raise BrokerUnavailable(f"OAUTH_CALLBACK {settings.oauth_callback} gives no token: {error}") from error


def made(client: Callable[[dict[str, Any]], C], config: Mapping[str, Any]) -> C:
    """Return a new client of the library; a login with OAUTH_CALLBACK has a token by then.

    Without a token the library waits 10 s, and then fails in a way that callbacks do not survive.

    Args:
        client: Consumer or Producer.
        config: From `kafka.config`, with callbacks and logger.

    Raises:
        KafkaException: There is no token.
    """
    if (tokens := config.get(CALLBACK)) is not None:
        try:
            tokens(config.get("sasl.oauthbearer.config"))
        except CommandFailed as error:
            text = f"the login has no token: {error}"
            raise KafkaException(KafkaError(KafkaError._AUTHENTICATION, text)) from error
    return client(dict(config))


@cache
def _tokens(name: str) -> Tokens:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever the module's own code raises
        why = printable(f"{type(error).__name__}: {error}")[:_ERROR_CHARACTERS]
        raise SettingsInvalid([f"OAUTH_CALLBACK: {name!r} cannot be imported: {why}"]) from error
    if not callable(found):
        raise SettingsInvalid([f"OAUTH_CALLBACK: {name!r} is not allowed: it must be a function"])
    return Tokens(found, SystemClock())


def _checked(answer: Any, now_s: float) -> Token:
    """Return what a function gave as a token. Raises _Unfit with what is wrong; it never shows the token."""
    if not isinstance(answer, tuple | list) or not 2 <= len(answer) <= len(Token._fields):
        raise _Unfit("it must return (token, expiry in epoch seconds), and may add principal and extensions")
    token = Token(*answer, *("", {})[len(answer) - 2 :])
    if not isinstance(token.text, str) or not token.text:
        raise _Unfit("the token must be a text that is not empty")
    if not isinstance(token.expires_s, int | float) or not math.isfinite(token.expires_s):
        raise _Unfit("the expiry must be a number of epoch seconds")
    if token.expires_s >= _FAR_S:
        raise _Unfit(f"the expiry must be in epoch seconds, and {token.expires_s:.0f} is in milliseconds")
    if token.expires_s <= now_s:
        raise _Unfit(f"the token expired {now_s - token.expires_s:.0f} s ago")
    if not isinstance(token.principal, str) or not isinstance(token.extensions, dict):
        raise _Unfit("the principal must be a text, and the extensions a dict of texts")
    return token._replace(expires_s=float(token.expires_s))
