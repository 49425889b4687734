"""The fields of resources that are not Kubernetes' own, as their definitions have them: unknown ones are refused."""

from __future__ import annotations

from typing import Any, Final

from jsonschema import Draft7Validator  # type: ignore[import-untyped]

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}


def _closed(*required: str, **properties: Schema) -> Schema:
    closed: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return closed | {"required": list(required)}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


_RESOURCE: Final = _closed(
    "type",
    type=_one_of("topic", "group", "cluster", "transactionalId"),
    name=_TEXT,
    patternType=_one_of("literal", "prefix"),
)
_ACL: Final = _closed(
    "resource",
    "operations",
    resource=_RESOURCE,
    operations=_list(_one_of("Read", "Write", "Create", "Alter", "Describe", "DescribeConfigs")),
    host=_TEXT,
    type=_one_of("allow", "deny"),
)
_SPARK_POD: Final[dict[str, Schema]] = {
    "cores": {"type": "integer", "minimum": 1},
    "memory": _TEXT,
    "memoryOverhead": _TEXT,
    "labels": {"type": "object", "additionalProperties": _TEXT},
    "securityContext": {"type": "object"},
}
SPECS: Final[dict[str, Schema]] = {
    # Strimzi 1.2, kafka.strimzi.io/v1.
    "KafkaTopic": _closed(
        topicName=_TEXT,
        partitions={"type": "integer", "minimum": 1},
        replicas={"type": "integer", "minimum": 1, "maximum": 32767},
        config={"type": "object"},
    ),
    "KafkaUser": _closed(
        authentication=_closed("type", type=_one_of("tls", "tls-external", "scram-sha-512")),
        authorization=_closed("type", "acls", type=_one_of("simple"), acls=_list(_ACL)),
    ),
    # Gateway API 1, what a route of this chart has.
    "HTTPRoute": _closed(
        parentRefs=_list(_closed("name", name=_TEXT, namespace=_TEXT, sectionName=_TEXT, port={"type": "integer"})),
        hostnames=_list(_TEXT),
        rules=_list(
            _closed(
                matches=_list(_closed(path=_closed(type=_one_of("PathPrefix", "Exact"), value=_TEXT))),
                filters=_list({"type": "object", "required": ["type"]}),
                backendRefs=_list(_closed("name", "port", name=_TEXT, port={"type": "integer"})),
            )
        ),
    ),
    # KEDA 2, keda.sh/v1alpha1: what the example has.
    "ScaledObject": _closed(
        "scaleTargetRef",
        "triggers",
        scaleTargetRef=_closed("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
        pollingInterval={"type": "integer"},
        cooldownPeriod={"type": "integer"},
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        fallback=_closed(failureThreshold={"type": "integer"}, replicas={"type": "integer"}),
        advanced={"type": "object"},
        triggers=_list(
            _closed("type", type=_TEXT, metricType=_TEXT, metadata={"type": "object", "additionalProperties": _TEXT})
        ),
    ),
    # Spark operator 2, sparkoperator.k8s.io/v1beta2: what the application has.
    "SparkApplication": _closed(
        *("type", "sparkVersion", "mainApplicationFile", "driver", "executor"),
        type=_one_of("Java", "Python", "Scala", "R"),
        pythonVersion=_one_of("3"),
        mode=_one_of("cluster", "client"),
        sparkVersion=_TEXT,
        image=_TEXT,
        imagePullPolicy=_TEXT,
        mainApplicationFile=_TEXT,
        arguments=_list(_TEXT),
        restartPolicy=_closed(
            type=_one_of("Never", "Always", "OnFailure"),
            onFailureRetryInterval={"type": "integer", "minimum": 1},
            onSubmissionFailureRetryInterval={"type": "integer", "minimum": 1},
        ),
        deps=_closed(packages=_list(_TEXT), jars=_list(_TEXT)),
        sparkConf={"type": "object", "additionalProperties": _TEXT},
        driver=_closed(serviceAccount=_TEXT, env=_list({"type": "object", "required": ["name"]}), **_SPARK_POD),
        executor=_closed(instances={"type": "integer", "minimum": 1}, **_SPARK_POD),
    ),
}


def assert_known(manifest: dict[str, Any]) -> None:
    """Fail on a spec with a field or a value that the definition does not have."""
    Draft7Validator(SPECS[manifest["kind"]]).validate(manifest["spec"])
