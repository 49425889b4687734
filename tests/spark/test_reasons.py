"""Every reason for a dead letter on Spark: the cases and assertions of the embedded engine, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.dlq import test_dlq_reasons
from tests.integration.messages import Launch
from tests.spark.queries import WAIT_S, command

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]


class TestReasonsOnSpark(test_dlq_reasons.TestReasons):
    @pytest.fixture(scope="class")
    @classmethod
    def launch(cls, java: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
        return Launch(command("run", tmp_path_factory.mktemp("query")), WAIT_S)
