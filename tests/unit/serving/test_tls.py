"""HTTPS: what travels is encrypted, and the token goes to nobody who cannot show a certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from sidecar.cli import instance
from sidecar.clock import SystemClock
from sidecar.errors import CommandFailed
from sidecar.serving import handshakes
from sidecar.serving.handshakes import HANDSHAKES_MAX
from sidecar.serving.http import Http
from sidecar.serving.peers import HttpPeers
from sidecar.serving.server import Server
from sidecar.serving.tls import check_certificate, client_context
from sidecar.settings import Settings
from tests.unit.api.test_api import Snapshots
from tests.unit.api_stage import Client
from tests.unit.engine.test_view import NOW_MS, view_of

SOON_S = 60.0


class Files(NamedTuple):
    """PEM files."""

    cert: Path
    key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A certificate for localhost and 127.0.0.1, which is its own authority."""
    made = Files(*(tmp_path_factory.mktemp("tls") / name for name in ("tls.crt", "tls.key")))
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(made.key), "-out", str(made.cert), "-days", "2", "-subj", "/CN=test", "-addext", names]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no openssl")
    return made


@pytest.fixture
def secured(files: Files) -> Iterator[Server]:
    with Client(Snapshots([view_of([NOW_MS + 3_000])]), token="secret") as client:
        server = Server(client.app, host="127.0.0.1", port=0, certificate=files.cert, key=files.key)
        server.start()
        yield server
        server.stop(SOON_S)


def test_a_server_with_a_certificate_speaks_https_and_nothing_else(secured: Server, files: Files) -> None:
    assert secured.url.startswith("https://127.0.0.1:")
    answer = httpx.get(secured.url + "/pending", timeout=SOON_S, verify=client_context(files.cert))
    assert answer.json()["total"] == 1
    with pytest.raises(httpx.HTTPError):
        httpx.get(secured.url.replace("https", "http") + "/pending", timeout=SOON_S)


def test_other_instances_are_asked_by_https_with_the_authorities_of_the_settings(secured: Server, files: Files) -> None:
    asked = HttpPeers(SystemClock(), "secret", client_context(files.cert), tls_only=True)
    status, _ = asked.get(secured.url, "/pending/messages")
    assert status == 200
    with pytest.raises(CommandFailed, match="does not answer"):
        HttpPeers(SystemClock(), "secret", client_context(None), tls_only=True).get(secured.url, "/pending/messages")


def test_the_token_does_not_travel_in_clear_when_tls_is_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CommandFailed, match="not an address of an instance"):
            HttpPeers(SystemClock(), "secret", client_context(None), tls_only=True).send("POST", url, "/x")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_commands_verify_the_certificate(secured: Server, files: Files) -> None:
    assert instance.ask(secured.url, "GET", "/pending", None, authorities=files.cert).status == 200
    with pytest.raises(instance.Unanswered, match="certificate"):
        instance.ask(secured.url, "GET", "/pending", "secret")


def test_who_does_not_shake_hands_is_dropped_and_keeps_nobody_out(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.2)
    with Client(Snapshots([view_of([NOW_MS + 3_000])])) as client, contextlib.ExitStack() as opened:
        server = Server(client.app, host="127.0.0.1", port=0, certificate=files.cert, key=files.key)
        server.start()
        opened.callback(server.stop, SOON_S)
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), SOON_S)) for _ in range(150)
        ]
        assert httpx.get(server.url + "/livez", timeout=SOON_S, verify=client_context(files.cert)).status_code == 200
        for each in silent:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""


def test_strangers_that_stay_silent_hold_a_bounded_number_of_connections(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a handshake may take: the oldest of the address that has the most goes."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 3_600.0)
    over = 20
    with Client(Snapshots([view_of([NOW_MS + 3_000])])) as client, contextlib.ExitStack() as opened:
        server = Server(client.app, host="127.0.0.1", port=0, certificate=files.cert, key=files.key)
        server.start()
        opened.callback(server.stop, SOON_S)

        def silent(address: str) -> socket.socket:
            place = ("127.0.0.1", server.port)
            return opened.enter_context(socket.create_connection(place, SOON_S, source_address=(address, 0)))

        other = silent("127.0.0.2")
        flood = [silent("127.0.0.1") for _ in range(HANDSHAKES_MAX + over)]
        for each in flood[: over + 1]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        for each in [other, *flood[over + 1 :]]:
            each.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        assert httpx.get(server.url + "/livez", timeout=SOON_S, verify=client_context(files.cert)).status_code == 200


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(files: Files) -> None:
    with Client(Snapshots([view_of([NOW_MS + 3_000])])) as client, contextlib.ExitStack() as opened:
        server = Server(client.app, host="127.0.0.1", port=0, certificate=files.cert, key=files.key)
        server.start()
        opened.callback(server.stop, SOON_S)
        context, incoming, outgoing = client_context(files.cert), ssl.MemoryBIO(), ssl.MemoryBIO()
        spoken = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        wire = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), SOON_S))
        done = False
        while not done:
            try:
                spoken.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                wire.sendall(outgoing.read())
                incoming.write(wire.recv(65_536))
        spoken.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        wire.sendall(outgoing.read())  # its last message and the request at once
        answer = b""
        while not answer:
            incoming.write(wire.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = spoken.read()
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_the_address_of_a_server_with_a_certificate_is_https(files: Files) -> None:
    settings = Settings(http_port=0, http_tls_cert=files.cert, http_tls_key=files.key)
    http = Http(settings, lambda _: pytest.fail("nothing asks for it"))
    try:
        assert http.url.startswith("https://127.0.0.1:")
    finally:
        http.stop(SOON_S)


@pytest.mark.parametrize("broken", ["no such file", "no certificate", "another key"])
def test_files_that_cannot_be_used_are_named_before_the_port_opens(files: Files, tmp_path: Path, broken: str) -> None:
    cert, key = files
    if broken == "no such file":
        cert = tmp_path / "none"
    elif broken == "no certificate":
        cert = tmp_path / "text"
        cert.write_text("no certificate")
    else:
        key = tmp_path / "tls.key"
        command = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)]
        subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(CommandFailed, match="HTTP_TLS_CERT"):
        check_certificate(Settings(http_tls_cert=cert, http_tls_key=key))
    with pytest.raises(CommandFailed, match="HTTP_TLS_CA"):
        client_context(tmp_path / "none")


def test_a_key_with_a_password_is_refused_without_asking_for_it(files: Files, tmp_path: Path) -> None:
    locked = tmp_path / "tls.key"
    command = ["openssl", "ec", "-in", str(files.key), "-aes128", "-passout", "pass:secret-1", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(CommandFailed, match="without a password"):
        check_certificate(Settings(http_tls_cert=files.cert, http_tls_key=locked))


def test_a_client_of_this_machine_asks_the_name_that_the_certificate_is_for(files: Files) -> None:
    given = Settings(http_tls_cert=files.cert, http_tls_key=files.key)
    assert given.http_url == "https://127.0.0.1:8080"
    assert replace(given, http_advertised_url="https://sidecar.example").http_url == "https://sidecar.example"
