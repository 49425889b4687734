"""Fixtures of the tests of deploy/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.charts import Helm
from tests.deploy.tools import find


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm; the tests are skipped without it."""
    return Helm(find("helm", target="helm"))


@pytest.fixture(scope="session")
def kustomize() -> Path:
    """Where Kustomize is; the tests are skipped without it, also where other programs must be there."""
    return find("kustomize", target="kustomize", is_required=False)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Where promtool is; the tests are skipped without it."""
    return find("promtool", target="promtool")
