"""Names in the documentation exist: settings, headers, metrics, events, make targets, files."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar.contract
from sidecar.metrics import DECLARED, PREFIX
from sidecar.model import Reason
from sidecar.settings import SETTINGS
from sidecar.settings.sources import CONFIG
from sidecar.settings.table import BY_FILE
from tests.docs.pages import DOCS, PAGES, README, ROOT

ALL = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ACCEPTED_FROM_IBM = {"APP_NAME", "LOG_LEVEL_IBM", "JAAS_LOGIN_MODULE", "SSL_PROTOCOL", "SSL_ENABLED_PROTOCOLS"}
OTHERS_HAVE = {"SOURCE_DATE_EPOCH", "DEFAULT_KEY_SERDE", "SIDECAR_TEST_BOOTSTRAP", "SIDECAR_PURE_PYTHON", "SASL_SSL"}
"""Names in capitals that are no settings."""
NO_HEADERS = {
    "retry-sidecar",
    "retry-sidecar-client",
    "retry-sidecar-lib",
    "retry-queue",
    "retry-control",
    "retry-sidecar-spark",
}


def code_words(page: Path) -> Iterator[str]:
    """Yield the words in code spans."""
    for span in CODE.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)):
        yield from re.split(r"[\s,=(){}\"']+", span)


def settings() -> set[str]:
    """Return all names that a setting has in the environment, with and without the prefix."""
    return {setting.name for setting in SETTINGS} | BY_FILE.keys() | ACCEPTED_FROM_IBM | {CONFIG}


def headers() -> set[str]:
    """Return the texts in the contract's modules that look like headers of ours."""
    found = set()
    for module in pkgutil.walk_packages(sidecar.contract.__path__, "sidecar.contract."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, str) and value.startswith(("retry-", "x-ibm-retry-", "__connect.errors.")):
                found.add(value)
    return found | {"retry-signature"}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page: Path) -> None:
    known = settings() | OTHERS_HAVE
    for word in code_words(page):
        name = word.removeprefix("KAFKA_RETRY_")
        form = r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+" if name == word else r"[A-Z][A-Z0-9_]*"
        if re.fullmatch(form, name) and not name.startswith(("CLIENT_", "OTEL_")):
            assert name in known, f"{page.name}: there is no setting {name}"


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_headers_exist(page: Path) -> None:
    known = headers()
    for word in code_words(page):
        if re.fullmatch(r"(x-ibm-)?retry(-[a-z]+)+|__connect\.errors(\.[a-z]+)+", word) and word not in NO_HEADERS:
            assert word in known, f"{page.name}: there is no header {word}"


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_exist(page: Path) -> None:
    for name in re.findall(rf"\b{PREFIX}([a-z_]+)", page.read_text(encoding="utf-8")):
        assert re.sub(r"_(bucket|sum|count)$", "", name) in DECLARED, f"{page.name}: there is no metric {name}"


def test_every_header_and_every_reason_stands_on_the_page_of_headers() -> None:
    text = (DOCS / "reference/headers.md").read_text(encoding="utf-8")
    for name in headers() - {"retry-signature"}:
        assert f"`{name}`" in text or f"`.{name.removeprefix('__connect.errors.')}`" in text or name in text, name
    for reason in Reason:
        assert f"| `{reason}` |" in text, reason


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    for word in code_words(page):
        if re.fullmatch(r"(?:clients|deploy|docs|sidecar|tests|bench|requirements|\.github)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{page.name}: there is no {word}"


def test_links_of_the_pages_outside_of_the_site_lead_somewhere() -> None:
    """Those inside are the site's: mkdocs checks them, with their anchors."""
    for page in (
        README,
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        ROOT / "deploy" / "README.md",
        ROOT / "clients" / "python" / "README.md",
    ):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_page_names_the_host_of_a_package_registry_or_a_folder_of_a_machine() -> None:
    for page in ALL:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pypi\.org|repo1?\.maven|registry\.npmjs|files\.pythonhosted|proxy\.golang", text), page
        assert not re.search(r"(?<![\w.])/(?:work|root|tmp)/", text), page
