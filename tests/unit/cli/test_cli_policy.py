"""`retry-sidecar policy check` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar.cli import main

POLICIES = """
delays: [1m, 10m]
policies:
  slow:
    backoff: {first: 1m, attempts: 4}
    jitter: 0.2
    max_age: 12m
exception_policies:
  com.acme.Throttled*: slow
origin_policies:
  pay*:
    delays: 5s
    max_per_second: 200
    order: key
"""
AT_MS = 1_767_225_600_000


def run(tmp_path: Path, *words: str, text: str = POLICIES) -> Result:
    path = tmp_path / "policies.yaml"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["policy", *words, "--config", str(path)])


def explained(tmp_path: Path, *words: str) -> dict[str, Any]:
    result = run(tmp_path, "explain", "--json", "--at", str(AT_MS), *words)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_check_lists_every_policy(tmp_path: Path) -> None:
    result = run(tmp_path, "check", "--json")
    assert result.exit_code == 0
    general, pay, slow = json.loads(result.stdout)["policies"]
    assert (general["name"], general["delays_ms"], general["max_per_second"]) == ("", [60_000, 600_000], None)
    assert general["exception_policies"] == {"com.acme.Throttled*": "slow"}
    assert (pay["name"], pay["for"], pay["retries"], pay["max_per_second"]) == ("pay*", "origins", 1, 200.0)
    assert [each["order"] for each in (general, pay, slow)] == ["none", "key", None]
    assert (slow["for"], slow["delays_ms"], slow["jitter"], slow["max_age_ms"]) == (
        "by name", [60_000, 120_000, 240_000, 480_000], 0.2, 720_000,
    )  # fmt: skip
    assert "pay*" in run(tmp_path, "check").stdout


def test_check_says_what_is_wrong_and_ends_with_the_status_of_settings(tmp_path: Path) -> None:
    result = run(tmp_path, "check", text="policies: {a: {jitter: 2}}\norigin_policies: {b: {policy: c}}\n")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        "POLICIES: a: jitter: '2' is not allowed: it must be a number from 0 to 1, such as 0.2 (from "
    )


def test_explain_shows_the_policy_and_the_whole_schedule(tmp_path: Path) -> None:
    answer = explained(tmp_path, "--origin", "orders", "--exception", "com.acme.ThrottledByCard")
    assert answer["policy"] == {"name": "slow", "chosen_by": "EXCEPTION_POLICIES"}
    retries = answer["retries"]
    assert [each["due_ms"] - AT_MS for each in retries] == [60_000, 180_000, 420_000]
    assert [each["latest_ms"] - each["failed_ms"] for each in retries] == [72_000, 144_000, 288_000]
    assert answer["end"]["reason"] == "too-old"


@pytest.mark.parametrize(
    ("words", "policy", "rate", "delays_ms"),
    [
        (["--origin", "orders"], {"name": "", "chosen_by": None}, None, [60_000, 600_000]),
        (["--origin", "payments"], {"name": "pay*", "chosen_by": "ORIGIN_POLICIES"}, 200.0, [5_000]),
        (
            ["--origin", "payments", "--policy", "slow", "--header", "retry-attempt:3"],
            {"name": "slow", "chosen_by": "retry-policy"},
            200.0,
            [480_000],
        ),
        (
            ["--origin", "orders", "--header", "retry-delay-ms:7", "--header", "retry-remaining:2"],
            {"name": "", "chosen_by": None},
            None,
            [7, 600_000],
        ),
        (
            [
                *("--header", "x-ibm-retry-origin-topic:orders", "--header", "x-ibm-retry-exception-type:E"),
                *("--header", f"x-ibm-retry-timestamp-ms:{AT_MS}"),
            ],
            {"name": "", "chosen_by": None},
            None,
            [20_000, 40_000, 60_000],
        ),
    ],
)
def test_explain_reads_a_message_as_the_sidecar_does(
    tmp_path: Path, words: list[str], policy: object, rate: float | None, delays_ms: list[int]
) -> None:
    answer = explained(tmp_path, *words)
    assert (answer["policy"], answer["max_per_second"]) == (policy, rate)
    assert answer["order"] == ("none" if rate is None else "key")
    assert [each["due_ms"] - each["failed_ms"] for each in answer["retries"]] == delays_ms
    assert answer["end"]["reason"] == ("too-old" if "slow" in words else "attempts-exhausted")


def test_explain_shows_a_table_for_people(tmp_path: Path) -> None:
    result = run(tmp_path, "explain", "--origin", "payments")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "policy: pay*, by ORIGIN_POLICIES; at most 200 a second for payments; in the order of the key"
    assert lines[2].split() == ["1", "5s", "5s"]
    assert lines[3].startswith("then dead-lettered attempts-exhausted, to dlq: ")
    gone = run(tmp_path, "explain", "--origin", "payments", "--policy", "fast")
    assert gone.stdout == (
        "then dead-lettered bad-header, to dlq: retry-policy='fast' is no policy: allowed are slow\n"
    )


@pytest.mark.parametrize(
    ("words", "dlq"),
    [
        (["--origin", "orders"], "dlq"),
        (["--origin", "payments"], "pay-dlq"),
        (["--origin", "payments", "--policy", "slow"], "slow-dlq"),
        (["--origin", "payments", "--exception", "Late"], "slow-dlq"),
        # No policy is met: the one of its origin.
        (["--origin", "payments", "--policy", "fast"], "pay-dlq"),
    ],
)
def test_explain_shows_the_dlq_of_the_policy_that_a_message_meets(tmp_path: Path, words: list[str], dlq: str) -> None:
    text = """
policies: {slow: {dlq_topic: slow-dlq}}
origin_policies: {pay*: {dlq_topic: pay-dlq, exception_policies: {Late: slow}}}
"""
    answer = json.loads(run(tmp_path, "explain", "--json", *words, text=text).stdout)
    assert answer["end"]["dlq"] == dlq
    listed = json.loads(run(tmp_path, "check", "--json", text=text).stdout)["policies"]
    assert [each["dlq"] for each in listed] == ["dlq", "pay-dlq", "slow-dlq"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 1, "missing-header"),
        (["--origin", "a b"], 1, "bad-header"),
        (["--origin", "a", "--header", "retry-control:cancel"], 1, "retry-control"),
        (["--origin", "a", "--header", "nonsense"], 2, "must be NAME:VALUE, such as retry-attempt:2"),
        (["--origin", "a", "--at", "never"], 2, "never"),
    ],
)
def test_explain_says_why_a_message_meets_no_policy(tmp_path: Path, words: list[str], status: int, says: str) -> None:
    result = run(tmp_path, "explain", *words)
    assert result.exit_code == status
    assert says in result.stderr
