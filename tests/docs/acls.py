"""`kafka-acls.sh --add` as the documentation writes it, carried out through the admin client.

The tool itself is not among the jars of the local broker. What it does not know here is refused, so that a mistyped
option does not pass.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.waiting import eventually

_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Alter": AclOperation.ALTER,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}
_PATTERNS = {"literal": ResourcePatternType.LITERAL, "prefixed": ResourcePatternType.PREFIXED}
_RPC_S = 15.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kafka-acls.sh", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--command-config")
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", action="append", required=True)
    parser.add_argument("--operation", action="append", choices=list(_OPERATIONS), required=True)
    parser.add_argument("--resource-pattern-type", choices=list(_PATTERNS), default="literal")
    for option in ("--topic", "--group", "--transactional-id"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--cluster", action="store_true")
    return parser


def bindings(command: str) -> Iterator[AclBinding]:
    """Yield what one command adds."""
    given = _parser().parse_args(shlex.split(command)[1:])
    pattern = _PATTERNS[given.resource_pattern_type]
    resources = [
        *((ResourceType.TOPIC, name, pattern) for name in given.topic),
        *((ResourceType.GROUP, name, pattern) for name in given.group),
        *((ResourceType.TRANSACTIONAL_ID, name, pattern) for name in given.transactional_id),
        *([(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL)] if given.cluster else []),
    ]
    assert resources, f"names no resource: {command}"
    for (kind, name, how), principal, operation in itertools.product(resources, given.allow_principal, given.operation):
        yield AclBinding(kind, name, how, principal, "*", _OPERATIONS[operation], AclPermissionType.ALLOW)


def grant(bootstrap: str, commands: Sequence[str]) -> None:
    """Carry the commands out, and return when the broker goes by them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [binding for command in commands for binding in bindings(command)]
    for future in admin.create_acls(wanted).values():
        future.result(_RPC_S)
    anybody: Any = None  # the library's types do not know that a filter may leave names out
    everything = AclBindingFilter(
        ResourceType.ANY,
        anybody,
        ResourcePatternType.ANY,
        anybody,
        anybody,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    eventually(
        lambda: set(wanted) <= set(admin.describe_acls(everything).result(_RPC_S)), 15, "the access list is in force"
    )
