"""The descriptions of the settings of the HTTP server, for the table."""

from __future__ import annotations

from typing import Final

from sidecar.settings import kinds
from sidecar.settings.kinds import whole
from sidecar.settings.setting import Setting

HOST: Final = Setting(
    kinds.HOST, "Address that the HTTP server listens on.", default_text="127.0.0.1; 0.0.0.0 in the image"
)
PORT: Final = Setting(whole(0, 65_535), "Port of the HTTP server; 0 picks a free one.", common=True)
ADVERTISED_URL: Final = Setting(
    kinds.BASE_URL,
    "URL at which other instances and commands reach this instance, without a path.",
    default_text="made from HTTP_HOST, or the address towards the brokers, and HTTP_PORT",
)
TLS_CERT: Final = Setting(
    kinds.FILE, "PEM file with the certificate of the HTTP server and its chain: it then speaks HTTPS only."
)
TLS_KEY: Final = Setting(kinds.FILE, "PEM file with the key of HTTP_TLS_CERT, without a password.")
TLS_CA: Final = Setting(
    kinds.FILE,
    "PEM file with the authorities that the certificates of other instances are verified with.",
    default_text="those of the system",
)
API_TOKEN: Final = Setting(
    kinds.TOKENS,
    "Bearer token of the HTTP API. Of several the first signs and is sent to other instances, and each is accepted: "
    "docs/how-to/runbook.md has the steps of a rotation. On a host other than loopback, requests that change something "
    "answer 403 until it is set. Other users of the machine can read a command line: prefer the environment.",
    secret=True,
)
API_READ: Final = Setting(
    kinds.choice("token", "open"),
    "Whether messages, header values, settings and outcomes are shown without a token. Counts, health and metrics "
    "always are; payloads never, except on loopback while no token is set.",
)
API_READ_TOKEN: Final = Setting(
    kinds.TOKENS, "Token of the HTTP API that reads and changes nothing. Needs API_TOKEN.", secret=True
)
