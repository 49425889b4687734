"""Rights on a broker that asks for them; who has no rule for or against it may do all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tests.broker import local_broker
from tests.waiting import eventually

RPC_S: Final = 15.0
USER: Final = "User:ANONYMOUS"


@contextmanager
def broker_with_permissions() -> Iterator[str]:
    """Yield the address of a broker of the caller's own that checks permissions."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:root",
    }
    with local_broker(properties=properties) as broker:
        yield broker.bootstrap_servers


def deny(admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Take one permission on a topic or group away and leave all others."""
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, USER, "*", *rule)
        for rule in ((operation, AclPermissionType.DENY), (AclOperation.ALL, AclPermissionType.ALLOW))
    ]
    for future in admin.create_acls(rules).values():
        future.result(RPC_S)
    _await_rules(admin, kind, name, lambda found: any(each.operation == operation for each in found))


def give_back(admin: AdminClient, kind: ResourceType, name: str) -> None:
    """Give all permissions on a topic or group again."""
    rules = AclBindingFilter(kind, name, ResourcePatternType.ANY, USER, "*", AclOperation.ANY, AclPermissionType.ANY)
    for future in admin.delete_acls([rules]).values():
        assert future.result(RPC_S)
    _await_rules(admin, kind, name, lambda found: not found)


def _await_rules(
    admin: AdminClient, kind: ResourceType, name: str, met: Callable[[Sequence[AclBinding]], bool]
) -> None:
    """Wait until the broker applies what its controller has committed: it authorises by what it describes."""
    rules = AclBindingFilter(
        kind, name, ResourcePatternType.LITERAL, USER, "*", AclOperation.ANY, AclPermissionType.ANY
    )
    eventually(lambda: met(admin.describe_acls(rules).result(RPC_S)), RPC_S, f"the rules on {name} apply")
