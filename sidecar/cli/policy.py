"""`retry-sidecar policy`: checks the policies, and shows what they do with a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table

from sidecar.cli.instants import read_instant
from sidecar.cli.options import POLICY, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.contract import dialects_of, parse
from sidecar.contract.dialects import native
from sidecar.errors import CommandFailed
from sidecar.model import Drop, Headers, Record, Rejection, Request
from sidecar.policy import Policy, PolicyConfig
from sidecar.policy.explain import Met, Step, met, steps
from sidecar.settings import Settings
from sidecar.settings.kinds import show_duration
from sidecar.settings.policy import policy_config


@click.group(epilog="Example: retry-sidecar policy explain --origin payments --exception com.acme.Timeout")
def policy() -> None:
    """Check the policies, and show what they do with a message."""


@policy.command(cls=SettingsCommand, epilog="Example: retry-sidecar policy check --config policies.yaml")
@json_option
@settings_options(POLICY)
def check(settings: Settings, *, as_json: bool) -> None:
    """Check the settings of all policies and list them; exit status 2 with one line for each mistake."""
    listed = [_summary(kind, config) for kind, config in _all(policy_config(settings))]
    if as_json:
        print_json({"policies": listed})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("policy", "for", "retries", "delays", "jitter", "max age", "a second", "order", "DLQ"):
        table.add_column(heading, overflow="fold")
    for each in listed:
        table.add_row(
            *(each["name"] or "(general)", each["for"], str(each["retries"]), _delays(each["delays_ms"])),
            *(f"{each['jitter']:g}", _duration(each["max_age_ms"]), _rate(each["max_per_second"])),
            *(each["order"] or "", each["dlq"]),
        )
    console().print(table)


@policy.command(
    cls=SettingsCommand, epilog="Example: retry-sidecar policy explain --origin payments --header retry-delay-ms:5000"
)
@click.option("--origin", help="Origin topic, as in `retry-origin-topic`.")
@click.option("--exception", help="Class name of the error, as in `retry-exception`.")
@click.option("--policy", "name", help="Name of a policy, as in `retry-policy`.")
@click.option("--header", "pairs", multiple=True, metavar="NAME:VALUE", help="Another header; repeatable.")
@click.option(
    "--at", "at_ms", callback=read_instant, metavar="INSTANT", help="When the message fails first.  [default: now]"
)
@json_option
@settings_options(POLICY)
def explain(
    settings: Settings,
    *,
    origin: str | None,
    exception: str | None,
    name: str | None,
    pairs: tuple[str, ...],
    at_ms: int | None,
    as_json: bool,
) -> None:
    """Show which policy a message meets and when each retry is due, if it fails each time at once."""
    given = ((native.ORIGIN_TOPIC, origin), (native.EXCEPTION, exception), (native.POLICY, name))
    headers: Headers = [(header, value.encode()) for header, value in given if value is not None]
    headers += [_header(pair) for pair in pairs]
    failed_ms = SystemClock().wall_ms() if at_ms is None else at_ms
    dialects = dialects_of(settings.dialects)
    request = parse(Record(0, 0, failed_ms, None, None, headers), dialects)
    if isinstance(request, Rejection):
        raise CommandFailed(f"the message is a dead letter, {request.reason}: {request.detail}")
    if not isinstance(request, Request):
        raise CommandFailed("a control record meets no policy: leave out the headers retry-control*")
    config = policy_config(settings)
    found, course = met(config, request), list(steps(config, request, failed_ms))
    dlq_topic = Policy(config).dlq_of(dialects, None, None, headers)
    if as_json:
        print_json(_answer(request, found, course, dlq_topic))
    else:
        _show(request, found, course, dlq_topic)


def _header(pair: str) -> tuple[str, bytes]:
    name, colon, value = pair.partition(":")
    if not colon or not name:
        raise click.BadParameter(f"{pair!r}: must be NAME:VALUE, such as retry-attempt:2", param_hint="--header")
    return name, value.encode()


def _all(config: PolicyConfig) -> Iterator[tuple[str, PolicyConfig]]:
    yield "all other origins", config
    for own in config.by_origin:
        yield "origins", own
    for named in config.by_name:
        yield "by name", named


def _summary(kind: str, config: PolicyConfig) -> dict[str, Any]:
    limit = config.max_attempts
    return {
        "name": config.name,
        "for": kind,
        "retries": len(config.delays_ms) if limit is None else limit,
        "delays_ms": list(config.delays_ms),
        "jitter": config.jitter,
        "max_age_ms": config.max_age_ms,
        "max_per_second": None if kind == "by name" else config.max_per_second,
        "order": None if kind == "by name" else _order(config.order_by_key),
        "exception_policies": dict(config.by_exception),
        "dlq": config.dlq_topic,
    }


def _order(by_key: bool) -> str:
    return "key" if by_key else "none"


def _answer(request: Request, found: Met | None, course: list[Step], dlq_topic: str) -> dict[str, Any]:
    *retries, last = course
    return {
        "origin": request.origin,
        "policy": None if found is None else {"name": found.name, "chosen_by": found.by or None},
        "max_per_second": None if found is None else found.max_per_second,
        "order": _order(found is not None and found.ordered),
        "retries": [
            {
                "attempt": step.attempt,
                "failed_ms": step.failed_ms,
                "due_ms": _due_ms(step),
                "latest_ms": step.latest_ms,
                "limit": _limit(step),
            }
            for step in retries
        ],
        "end": {"attempt": last.attempt, "at_ms": last.failed_ms, **_end(last, dlq_topic)},
    }


def _due_ms(step: Step) -> int:
    return step.verdict.due_ms  # type: ignore[union-attr]  # all but the last step have a retry


def _limit(step: Step) -> int:
    return step.verdict.limit  # type: ignore[union-attr]  # the same


def _end(step: Step, dlq_topic: str) -> dict[str, str]:
    verdict = step.verdict
    if isinstance(verdict, Drop):
        return {"verdict": "dropped", "detail": verdict.detail}
    assert isinstance(verdict, Rejection)
    return {"verdict": "dead-lettered", "dlq": dlq_topic, "reason": verdict.reason.value, "detail": verdict.detail}


def _show(request: Request, found: Met | None, course: list[Step], dlq_topic: str) -> None:
    if found is not None:
        named = f"{found.name}, by {found.by}" if found.by else "the general settings"
        rate = (
            "" if found.max_per_second is None else f"; at most {found.max_per_second:g} a second for {request.origin}"
        )
        order = "; in the order of the key" if found.ordered else ""
        say(f"policy: {named}{rate}{order}")
    *retries, last = course
    first_ms = course[0].failed_ms
    if retries:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("retry", "delay", "after the first failure", "with jitter at most"):
            table.add_column(heading)
        for step in retries:
            due_ms = _due_ms(step)
            table.add_row(
                *(
                    str(step.attempt + 1),
                    _duration(max(0, due_ms - step.failed_ms)),
                    _duration(max(0, due_ms - first_ms)),
                ),
                _duration(max(0, step.latest_ms - step.failed_ms)) if step.latest_ms > due_ms else "",
            )
        console().print(table)
    end = _end(last, dlq_topic)
    where = f" {end['reason']}, to {end['dlq']}" if "reason" in end else ""
    say(f"then {end['verdict']}{where}: {end['detail']}")


def _delays(delays_ms: list[int]) -> str:
    shown = [show_duration(each) for each in delays_ms[:12]]
    return ",".join(shown) + (f",… ({len(delays_ms)})" if len(delays_ms) > len(shown) else "")


def _duration(duration_ms: int | None) -> str:
    return "" if duration_ms is None else show_duration(duration_ms)


def _rate(per_second: float | None) -> str:
    return "" if per_second is None else f"{per_second:g}"
