"""TLS of the HTTP server, and of the calls to other instances."""

from __future__ import annotations

import ssl
from pathlib import Path

from sidecar.errors import CommandFailed
from sidecar.settings import Settings


def check_certificate(settings: Settings) -> None:
    """Check that the server can speak TLS with its files. Raises CommandFailed with the setting to change."""
    if settings.http_tls_cert is None or settings.http_tls_key is None:
        return
    try:
        # Without the password the library would ask for it at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.http_tls_cert, settings.http_tls_key, password=""
        )
    except OSError as error:  # ssl.SSLError is one
        files = f"{str(settings.http_tls_cert)!r} and {str(settings.http_tls_key)!r}"
        raise CommandFailed(
            f"HTTP_TLS_CERT and HTTP_TLS_KEY: {files} cannot be used: {error.strerror or error}. They must be PEM "
            "files of a certificate and its key, without a password."
        ) from error


def client_context(authorities: Path | None) -> ssl.SSLContext:
    """Return the TLS of a client. Raises CommandFailed when the file of HTTP_TLS_CA cannot be used.

    Args:
        authorities: HTTP_TLS_CA; None: the authorities of the system.
    """
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise CommandFailed(
            f"HTTP_TLS_CA: {str(authorities)!r} cannot be used: {error.strerror or error}. It must be a PEM file of "
            "certificates."
        ) from error
