"""values.schema.json of both charts. The schema of `config` is made from the table of settings."""

from __future__ import annotations

import json
from typing import Final

from deploy.chart_forms import Schema, schema_of
from sidecar.settings import SETTINGS, Setting
from sidecar.settings.kinds import TOPIC, TOPIC_GLOB
from sidecar.settings.policies import NAME as POLICY_NAME
from sidecar.settings.table import per_origin, per_policy

SET_BY_THE_CHART: Final = {
    "INSTANCE_ID": "the pod's name, or an id in the state folder",
    "STATE_DIR": "where the volume is mounted",
    "HTTP_HOST": "http.host",
    "HTTP_PORT": "http.port",
    "SHUTDOWN_TIMEOUT": "shutdownTimeoutSeconds",
    "HTTP_ADVERTISED_URL": "http.tls, or extraEnv",
    "HTTP_TLS_CERT": "http.tls.existingSecret",
    "HTTP_TLS_KEY": "http.tls.existingSecret",
    "HTTP_TLS_CA": "http.tls.caKey",
    "API_TOKEN": "apiToken.existingSecret",
    "API_READ_TOKEN": "apiToken.readKey",
    "NOTIFY_URL": "notify.existingSecret",
    "SECURITY_PROTOCOL": "kafka.tls and kafka.sasl",
    "SASL_MECHANISM": "kafka.sasl.mechanism",
    "JAAS_ENABLED": "kafka.sasl",
    "JAAS_USERNAME": "kafka.sasl.username",
    "JAAS_PASSWORD": "kafka.sasl.existingSecret",
}
"""Settings to the chart values that decide them: they are not allowed under `config`."""

_TEXT: Final[Schema] = {"type": "string"}
_SWITCH: Final[Schema] = {"type": "boolean"}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_OBJECT: Final[Schema] = {"type": "object"}
_LABELS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_OBJECTS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
_AMOUNT: Final[Schema] = {"type": ["string", "integer"], "pattern": "^[0-9]+(\\.[0-9]+)?[A-Za-z]*$"}
_SECONDS: Final[Schema] = {"type": "integer", "minimum": 1}
_NAMESPACE: Final[Schema] = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"}
_HOSTS: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "string",
        "pattern": "^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    },
}
_REGISTRY: Final[Schema] = {"type": "string", "pattern": "^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9._/-]+)?)?$"}


def application() -> str:
    """Return the schema of retry-sidecar."""
    own = {
        "nameOverride": _TEXT,
        "namespaceOverride": _NAMESPACE,
        "fullnameOverride": _TEXT,
        "commonLabels": _LABELS,
        "imagePullSecrets": _OBJECTS,
        "replicaCount": {"type": "integer", "minimum": 0},
        "engine": _one_of("embedded", "spark"),
        "spark": _spark(),
        "persistence": _closed(
            enabled=_SWITCH,
            size=_AMOUNT,
            storageClass=_TEXT,
            accessModes=_TEXTS,
            annotations=_LABELS,
            retentionPolicy=_closed(whenDeleted=_one_of("Delete", "Retain"), whenScaled=_one_of("Delete", "Retain")),
        ),
        "terminationGracePeriodSeconds": _SECONDS,
        "podSecurityContext": _OBJECT,
        "service": _closed(
            type=_one_of("ClusterIP", "NodePort", "LoadBalancer"), port=_PORT, labels=_LABELS, annotations=_LABELS
        ),
        "ingress": _closed(
            enabled=_SWITCH, className=_TEXT, hosts=_HOSTS, tls=_OBJECTS, labels=_LABELS, annotations=_LABELS
        ),
        "httpRoute": _closed(
            enabled=_SWITCH,
            parentRefs={"type": "array", "items": {"type": "object", "required": ["name"]}},
            hostnames=_HOSTS,
            filters=_OBJECTS,
            labels=_LABELS,
            annotations=_LABELS,
        ),
        "topics": _topics(),
        "test": _closed(topic=_topic(), timeoutSeconds=_SECONDS, kafka=_login()),
        "serviceAccount": _closed(create=_SWITCH, name=_TEXT, annotations=_LABELS),
        "podDisruptionBudget": _closed(enabled=_SWITCH, maxUnavailable={"type": ["integer", "string"]}),
        "networkPolicy": _closed(
            enabled=_SWITCH,
            allowIngressFrom=_OBJECTS,
            kafkaPorts={"type": "array", "items": _PORT, "minItems": 1},
            kafkaTo=_OBJECTS,
            extraIngress=_OBJECTS,
            extraEgress=_OBJECTS,
        ),
        **_monitoring(),
        "podAnnotations": _LABELS,
        "podLabels": _LABELS,
        "priorityClassName": _TEXT,
        "nodeSelector": _LABELS,
        "tolerations": _OBJECTS,
        "affinity": _OBJECT,
        "topologySpreadConstraints": _OBJECTS,
        "updateStrategy": _OBJECT,
        "extraContainers": _OBJECTS,
        "initContainers": _OBJECTS,
        "extraObjects": _OBJECTS,
        "retry-sidecar-lib": {"type": "object", "description": "The library's own defaults; nothing reads them here."},
    }
    return _text("Values of the chart retry-sidecar", _of_both() | own)


def _spark() -> Schema:
    memory: Schema = {"type": "string", "pattern": "^[0-9]+[kmgtKMGT]$"}
    number: Schema = {"type": "integer", "minimum": 1, "maximum": 10_000}
    return _closed(
        checkpoint={"type": "string", "pattern": "^([a-z][a-z0-9]*:/.*)?$"},
        statePartitions=number,
        trigger={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        driverMemory=memory,
        tmpSize=_AMOUNT,
        executor=_closed(instances=number, cores=number, memory=memory, memoryOverhead=memory),
        conf={
            "type": "object",
            "propertyNames": {"pattern": "^spark[.]"},
            "additionalProperties": {"type": ["string", "integer", "number", "boolean"]},
        },
    )


def _monitoring() -> Schema:
    monitor = _closed(
        enabled=_SWITCH,
        interval=_TEXT,
        scrapeTimeout=_TEXT,
        labels=_LABELS,
        relabelings=_OBJECTS,
        metricRelabelings=_OBJECTS,
        tlsConfig=_OBJECT,
    )
    return {
        "podMonitor": monitor,
        "serviceMonitor": monitor,
        "prometheusRule": _closed(
            enabled=_SWITCH,
            labels=_LABELS,
            disabled=_TEXTS,
            runbookUrl={"type": "string", "pattern": "^(https?://[^#\\s]+)?$"},
        ),
        "grafanaDashboard": _closed(enabled=_SWITCH, labels=_LABELS, annotations=_LABELS),
    }


def library() -> str:
    """Return the schema of retry-sidecar-lib."""
    return _text("Values of the chart retry-sidecar-lib", _of_both() | {"state": _closed(sizeLimit=_AMOUNT)})


def _of_both() -> dict[str, Schema]:
    return {
        # Other charts of a release have values there too.
        "global": {"type": "object", "properties": {"imageRegistry": _REGISTRY}},
        "image": _closed(
            registry=_REGISTRY,
            repository={"type": "string", "minLength": 1},
            tag=_TEXT,
            digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
            pullPolicy=_one_of("Always", "IfNotPresent", "Never"),
        ),
        "config": _config(),
        "kafka": _closed(
            tls=_closed(
                enabled=_SWITCH,
                ca=_closed(existingSecret=_TEXT, key=_TEXT),
                client=_closed(existingSecret=_TEXT, certificateKey=_TEXT, privateKeyKey=_TEXT),
            ),
            sasl=_closed(mechanism=_TEXT, username=_TEXT, existingSecret=_TEXT, usernameKey=_TEXT, passwordKey=_TEXT),
        ),
        "apiToken": _closed(existingSecret=_TEXT, key=_TEXT, readKey=_TEXT),
        "notify": _closed(existingSecret=_TEXT, key=_TEXT),
        "http": _closed(
            host=_TEXT,
            port=_PORT,
            tls=_closed(existingSecret=_TEXT, certificateKey=_TEXT, privateKeyKey=_TEXT, caKey=_TEXT),
        ),
        "shutdownTimeoutSeconds": _SECONDS,
        "resources": _OBJECT,
        "securityContext": _OBJECT,
        "startupProbe": _probe(),
        "readinessProbe": _probe(),
        "livenessProbe": _probe(),
        "extraArgs": _TEXTS,
        "extraEnv": _OBJECTS,
        "extraEnvFrom": _OBJECTS,
        "extraVolumes": _OBJECTS,
        "extraVolumeMounts": _OBJECTS,
        "lifecycle": _OBJECT,
    }


def _topics() -> Schema:
    whole: Schema = {"type": "integer", "minimum": 0}
    topic_config: Schema = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]+([.][a-z]+)*$"},
        "additionalProperties": {"type": ["string", "integer", "number", "boolean"]},
    }
    return _closed(
        manage=_one_of("none", "job", "strimzi"),
        partitions={"type": "integer", "minimum": 1, "maximum": 10_000},
        job=_closed(
            kafka=_login(),
            serviceAccountName=_TEXT,
            timeoutSeconds=_SECONDS,
            backoffLimit=whole,
            podAnnotations=_LABELS,
            extraEnv=_OBJECTS,
        ),
        strimzi=_closed(
            cluster=_NAMESPACE,
            namespace=_NAMESPACE,
            apiVersion=_one_of("kafka.strimzi.io/v1", "kafka.strimzi.io/v1beta2"),
            users=_SWITCH,
            maxMessageBytes={"type": "integer", "minimum": 1, "maximum": 1_000_000_000},
            inputConfig=topic_config,
            dlqConfig=topic_config,
        ),
    )


def _topic() -> Schema:
    """Return the schema of a topic's name, which may be empty."""
    assert TOPIC.form is not None
    return {"type": "string", "anyOf": [{"maxLength": 0}, schema_of(TOPIC.form)]}


def _login() -> Schema:
    return _closed(
        tls=_closed(client=_closed(existingSecret=_TEXT, certificateKey=_TEXT, privateKeyKey=_TEXT)),
        sasl=_closed(username=_TEXT, existingSecret=_TEXT, usernameKey=_TEXT, passwordKey=_TEXT),
    )


def _config() -> Schema:
    settings = {setting.yaml_key: _setting(setting) for setting in SETTINGS if setting.name not in SET_BY_THE_CHART}
    client = {
        "description": "librdkafka properties for every Kafka client.",
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[a-z0-9]+(\\.[a-z0-9]+)*$"},
        "additionalProperties": {"type": ["string", "integer", "number", "boolean"], "minLength": 1},
    }
    return {"type": "object", "additionalProperties": False, "properties": {**settings, "client": client}}


def _setting(setting: Setting) -> Schema:
    """Return what a setting may have as a YAML value.

    With null Helm takes a default away: the templates leave such a setting out.
    """
    schema = _value(setting)
    of_type = schema["type"]
    types = [of_type] if isinstance(of_type, str) else list(of_type)
    return {"description": f"{setting.help} It must be {setting.kind.allowed}.", **schema, "type": [*types, "null"]}


def _value(setting: Setting) -> Schema:
    kind = setting.kind
    policies = {"ORIGIN_POLICIES": (per_origin, TOPIC_GLOB), "POLICIES": (per_policy, POLICY_NAME)}
    if setting.name in policies:
        fields, names = policies[setting.name]
        keys = {"type": "string"} if names.form is None else schema_of(names.form)
        policy = _closed(**{each.yaml_key: _value(each) for each in fields()})
        return {"type": "object", "propertyNames": keys, "additionalProperties": policy}
    if kind.is_switch:
        return _SWITCH
    if kind.form is None:
        return {"type": ["string", "integer"], "minLength": 1}
    schema = schema_of(kind.form)
    if not kind.is_list and "items" in schema:
        # Only as text: the program takes no list for it.
        del schema["items"], schema["minItems"], schema["uniqueItems"]
        schema["type"] = [each for each in schema["type"] if each != "array"]
    return schema


def _probe() -> Schema:
    fields = ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold")
    return _closed(enabled=_SWITCH, **{field: {"type": "integer", "minimum": 0} for field in fields})


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _text(title: str, properties: dict[str, Schema]) -> str:
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
    return json.dumps(head | _closed(**properties), indent=2) + "\n"
