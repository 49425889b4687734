"""`retry-sidecar dlq list` refuses what HTTP refuses, with the name of the option and before it asks a broker."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sidecar import cli


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (("--key", "k" * 501), "--key"),
        (("--retry-id", "k" * 257), "--retry-id"),
        (("--origin", "o" * 501), "--origin"),
        (("--died-from", "2026-01-02", "--died-to", "2026-01-01"), "died_from"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_option(given: tuple[str, ...], option: str) -> None:
    done = CliRunner().invoke(cli.main, ["dlq", "list", *given])
    assert done.exit_code == 2, done.output
    assert option in done.stderr
