"""The address at which other instances reach this one."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from sidecar.settings import Settings


def advertised_url(settings: Settings, url: str) -> str:
    """Return the URL at which other instances reach this one: HTTP_ADVERTISED_URL, else the URL of the server.

    For a server that listens on all addresses it has the address that this machine uses towards the brokers, which
    other instances can reach as well.

    Args:
        settings: Have the host and the brokers.
        url: URL of the server, with its actual port.
    """
    if settings.http_advertised_url is not None:
        return settings.http_advertised_url
    if not _is_wildcard(settings.http_host):
        return url
    first = settings.bootstrap_servers.split(",")[0].strip()
    try:
        broker = urlsplit(f"//{first.rpartition('://')[2]}")
        found = socket.getaddrinfo(broker.hostname, broker.port or 9092, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # nothing is sent
            own = str(probe.getsockname()[0])
    except (OSError, ValueError):
        return url
    place = urlsplit(url)
    return f"{place.scheme}://{f'[{own}]' if ':' in own else own}:{place.port}"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
