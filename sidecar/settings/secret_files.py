"""Secrets in files: `<NAME>_FILE` names a file whose content is the value of a secret setting."""

from __future__ import annotations

from pathlib import Path

from sidecar.settings import client

PROPERTY_SUFFIX = ".file"
ALLOWED = "the path of a file"
BYTES_MAX = 64 * 1024


def secret_property(name: str) -> str | None:
    """Return the secret property that the file of a name such as `sasl.password.file` contains, None of any other."""
    stem = name.removesuffix(PROPERTY_SUFFIX)
    # Some properties of the client library itself are files.
    return stem if stem != name and client.is_secret(name) and client.is_secret(stem) else None


def read_secret(path: str) -> str:
    """Return the content of a file, without the line end that editors and `echo` add.

    Raises:
        ValueError: There is no such value; the text completes `<path> `.
    """
    try:
        if not Path(path).is_file():
            raise ValueError("cannot be read: there is no such file")
        with Path(path).open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(content) > BYTES_MAX:
        raise ValueError(f"is too large: a secret may have {BYTES_MAX // 1024} KiB")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError("is not text in UTF-8") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise ValueError("is empty: it must contain the secret")
    return text
