"""A token server on this machine, and the function of OAUTH_CALLBACK that asks it.

Its tokens are JWTs without a signature, as Kafka's broker takes them when it is set to nothing else.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sidecar.clock import SystemClock

CLOCK = SystemClock()


class TokenServer(ThreadingHTTPServer):
    """Gives a token for each POST while it is `open`.

    Args:
        lifetime_s: of each token.
    """

    daemon_threads = True

    def __init__(self, lifetime_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lifetime_s = lifetime_s
        self.open = True
        self.valid = True
        """Whether brokers take the tokens."""
        self.given_s: list[float] = []
        """When each token was given, epoch seconds."""
        self.logins: set[str] = set()
        """The headers `Authorization` that came."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"

    @property
    def lasted_s(self) -> float:
        """How long after the first token the last one was given."""
        return self.given_s[-1] - self.given_s[0] if self.given_s else 0.0


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.logins.add(self.headers.get("authorization", ""))
        if not self.server.open:
            self._answer(503, {"error": "the token server is closed"})
            return
        now_s = CLOCK.wall_ms() / 1000
        self.server.given_s.append(now_s)
        token = _jwt(now_s, self.server.lifetime_s, "sidecar" if self.server.valid else None)
        self._answer(200, {"access_token": token, "token_type": "Bearer"})

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests free of requests."""

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def login_settings(bootstrap_servers: str, tokens: TokenServer) -> dict[str, str]:
    """Return the settings of a sidecar that logs in with the tokens of this server."""
    return {
        "BOOTSTRAP_SERVERS": bootstrap_servers,
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "OAUTHBEARER",
        "OAUTH_CALLBACK": "tests.integration.token_server:token",
        "CLIENT_SASL_OAUTHBEARER_CONFIG": tokens.url,
    }


@contextmanager
def token_server(lifetime_s: float) -> Iterator[TokenServer]:
    """Yield a token server that answers."""
    with TokenServer(lifetime_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def token(config: str) -> tuple[str, float]:
    """Return a token of the server whose URL is the configuration, and its expiry."""
    with urllib.request.urlopen(urllib.request.Request(config, b"", method="POST"), timeout=5) as answer:
        text: str = json.loads(answer.read())["access_token"]
    return text, json.loads(_decoded(text.split(".")[1]))["exp"]


def _jwt(now_s: float, lifetime_s: float, subject: str | None) -> str:
    claims = {**({"sub": subject} if subject else {}), "iat": int(now_s), "exp": int(now_s + lifetime_s)}
    return ".".join([_encoded({"alg": "none"}), _encoded(claims), ""])


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
