"""Secrets in files, from each source of settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sidecar.errors import SettingsInvalid
from sidecar.settings import SETTINGS, Setting, Settings, load, rows
from sidecar.settings.client import MASK
from sidecar.settings.secret_files import BYTES_MAX
from sidecar.settings.table import BY_FILE

SECRETS = [setting for setting in SETTINGS if setting.secret]
VALUE = "https://one-secret-of-the-tests"
"""Of every kind that a secret setting has."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{VALUE}\n", encoding="utf-8")
    return path


def _yaml(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _sources(setting: Setting, path: Path) -> dict[str, Callable[[], Settings]]:
    also = {"api_token": "a-token-of-the-tests"} if setting.name == "API_READ_TOKEN" else {}
    return {
        f"environment {setting.env}_FILE, file {path}": lambda: load(
            flags=also, environ={f"{setting.env}_FILE": str(path)}
        ),
        f"command line {setting.flag}-file, file {path}": lambda: load(
            flags={f"{setting.attribute}_file": str(path), **also}
        ),
        f"{path.parent}/config.yaml:1, file {path}": lambda: load(
            flags=also, config=_yaml(path.parent, f"{setting.yaml_key}_file: {path}")
        ),
    }


def _problems(environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(SettingsInvalid) as refused:
        load(environ={f"KAFKA_RETRY_{name}": value for name, value in environ.items()})
    return list(refused.value.problems)


@pytest.mark.parametrize("setting", SECRETS, ids=lambda setting: setting.name)
def test_every_secret_setting_is_read_from_a_file_that_any_source_names(setting: Setting, secret: Path) -> None:
    for origin, loaded in _sources(setting, secret).items():
        settings = loaded()
        assert getattr(settings, setting.attribute) == setting.kind.parse(VALUE)
        assert settings.origins[setting.name] == origin
        shown = {row.name: row for row in rows(settings)}[setting.name]
        assert (shown.value, shown.origin) == (MASK, origin)


@pytest.mark.parametrize(
    "loaded",
    [
        lambda path: load(environ={"KAFKA_RETRY_CLIENT_SASL_PASSWORD_FILE": str(path)}),
        lambda path: load(client=[f"sasl.password.file={path}"]),
        lambda path: load(config=_yaml(path.parent, f"client: {{sasl.password.file: {path}}}")),
    ],
    ids=["environment", "command line", "yaml"],
)
def test_a_secret_property_of_the_clients_is_read_from_a_file(loaded: Callable[[Path], Settings], secret: Path) -> None:
    settings = loaded(secret)
    assert settings.client == {"sasl.password": VALUE}
    assert settings.origins["client.sasl.password"].endswith(f", file {secret}")


def test_whatever_is_not_shown_can_be_in_a_file(secret: Path) -> None:
    environ = {"KAFKA_RETRY_CLIENT_SASL_OAUTHBEARER_CONFIG_FILE": str(secret)}
    assert load(environ=environ).client == {"sasl.oauthbearer.config": VALUE}


def test_a_property_of_the_library_that_is_a_file_stays_one() -> None:
    name = "sasl.oauthbearer.assertion.private.key.file"
    assert load(client=[f"{name}=/run/key"]).client == {name: "/run/key"}


def test_a_property_that_is_no_secret_has_no_file() -> None:
    assert load(client=["ssl.ca.location.file=/nowhere"]).client == {"ssl.ca.location.file": "/nowhere"}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"a password", "a password"),
        (b"a password\n", "a password"),
        (b"a password\r\n", "a password"),
        (b" blanks stay \n", " blanks stay "),
        ("Pässwort\n".encode(), "Pässwort"),
    ],
)
def test_only_the_line_end_at_the_end_is_left_out(content: bytes, value: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert load(environ={"KAFKA_RETRY_CLIENT_SASL_PASSWORD_FILE": str(path)}).client["sasl.password"] == value


def test_a_key_of_many_lines_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN KEY-----\nMIIE\n-----END KEY-----\n", encoding="utf-8")
    found = load(environ={"KAFKA_RETRY_CLIENT_SSL_KEY_PEM_FILE": str(path)}).client["ssl.key.pem"]
    assert found == "-----BEGIN KEY-----\nMIIE\n-----END KEY-----"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: there is no such file"),
        (b"", "is empty: it must contain the secret"),
        (b" \n", "is empty: it must contain the secret"),
        (b"x" * (BYTES_MAX + 1), "is too large: a secret may have 64 KiB"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
@pytest.mark.parametrize("name", [*BY_FILE, "CLIENT_SASL_PASSWORD_FILE"])
def test_a_file_without_a_usable_secret_is_refused(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    shown = "client property sasl.password.file" if name.startswith("CLIENT_") else name
    assert _problems({name: str(path)}) == [f"{shown}: {str(path)!r} {words} (from environment KAFKA_RETRY_{name})"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (line,) = _problems({"API_TOKEN_FILE": str(tmp_path)})
    assert "cannot be read: there is no such file" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file: run the tests as another user")
def test_a_file_that_this_user_may_not_read_is_refused(secret: Path) -> None:
    secret.chmod(0)
    (line,) = _problems({"API_TOKEN_FILE": str(secret)})
    assert "cannot be read: Permission denied" in line


def test_a_login_without_its_file_is_one_problem(tmp_path: Path) -> None:
    environ = {"JAAS_ENABLED": "true", "JAAS_USERNAME": "me", "SECURITY_PROTOCOL": "SASL_SSL"}
    assert len(_problems({**environ, "JAAS_PASSWORD_FILE": str(tmp_path / "none")})) == 1


def test_a_value_that_its_setting_does_not_take_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("too short\n", encoding="utf-8")
    (line,) = _problems({"API_TOKEN_FILE": str(path)})
    assert line.startswith(f"API_TOKEN: {MASK} is not allowed: it must be one or more different tokens")
    assert line.endswith(f"(from environment KAFKA_RETRY_API_TOKEN_FILE, file {path})")


def test_a_value_and_its_file_from_one_source_are_refused_even_when_equal(secret: Path) -> None:
    source = "environment KAFKA_RETRY_API_TOKEN"
    both = f"both are set (from {source} and {source}_FILE, file {secret}): give the value or its file"
    assert _problems({"API_TOKEN": VALUE, "API_TOKEN_FILE": str(secret)}) == [f"API_TOKEN and API_TOKEN_FILE: {both}"]

    both = "both are set: give the value or its file (from environment KAFKA_RETRY_CLIENT_SASL_PASSWORD_FILE)"
    properties = "client properties sasl.password and sasl.password.file"
    environ = {"CLIENT_SASL_PASSWORD": VALUE, "CLIENT_SASL_PASSWORD_FILE": str(secret)}
    assert _problems(environ) == [f"{properties}: {both}"]


def test_between_sources_the_precedence_decides(secret: Path, tmp_path: Path) -> None:
    file = {"KAFKA_RETRY_API_TOKEN_FILE": str(secret)}
    assert load(flags={"api_token": "x" * 16}, environ=file).api_token == "x" * 16
    config = _yaml(tmp_path, "api_token: yyyyyyyyyyyyyyyy\nclient: {sasl.password: low}")
    both = load(environ={**file, "KAFKA_RETRY_CLIENT_SASL_PASSWORD_FILE": str(secret)}, config=config)
    assert (both.api_token, both.client["sasl.password"]) == (VALUE, VALUE)


@pytest.mark.parametrize("text", ["api_token_file: []", "api_token_file: {a: b}", "api_token_file:"])
def test_a_file_in_yaml_is_named_by_one_text(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"API_TOKEN_FILE: .* is not allowed: it must be the path of a file"):
        load(config=_yaml(tmp_path, text))


def test_an_empty_variable_counts_as_not_set() -> None:
    (warning,) = load(environ={"KAFKA_RETRY_API_TOKEN_FILE": " "}).warnings
    assert warning == "KAFKA_RETRY_API_TOKEN_FILE: is empty: it counts as not set"
    with pytest.raises(SettingsInvalid, match="API_TOKEN_FILE"):
        load(flags={"api_token_file": ""})


def test_a_mistyped_name_is_warned_of_with_the_closest_one() -> None:
    (warning,) = load(environ={"KAFKA_RETRY_API_TOKN_FILE": "/run/token"}).warnings
    assert "KAFKA_RETRY_API_TOKEN_FILE" in warning
