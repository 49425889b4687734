"""values.schema.json of both charts. The schema of `config` is made from the table of settings."""

from __future__ import annotations

import json
from typing import Any, Final

from sidecar.settings import SETTINGS, Setting
from sidecar.settings.table import per_origin, per_policy

Schema = dict[str, Any]

SET_BY_THE_CHART: Final = {
    "INSTANCE_ID": "the pod's name, or an id in the state folder",
    "STATE_DIR": "where the volume is mounted",
    "HTTP_HOST": "http.host",
    "HTTP_PORT": "http.port",
    "SHUTDOWN_TIMEOUT": "shutdownTimeoutSeconds",
    "API_TOKEN": "apiToken.existingSecret",
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


def application() -> str:
    """Return the schema of retry-sidecar."""
    monitor = _closed(
        enabled=_SWITCH,
        interval=_TEXT,
        scrapeTimeout=_TEXT,
        labels=_LABELS,
        relabelings=_OBJECTS,
        metricRelabelings=_OBJECTS,
    )
    own = {
        "nameOverride": _TEXT,
        "fullnameOverride": _TEXT,
        "commonLabels": _LABELS,
        "imagePullSecrets": _OBJECTS,
        "replicaCount": {"type": "integer", "minimum": 0},
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
        "service": _closed(type=_one_of("ClusterIP", "NodePort", "LoadBalancer"), port=_PORT, annotations=_LABELS),
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
        "podMonitor": monitor,
        "serviceMonitor": monitor,
        "prometheusRule": _closed(enabled=_SWITCH, labels=_LABELS, disabled=_TEXTS, runbookUrl=_TEXT),
        "grafanaDashboard": _closed(enabled=_SWITCH, labels=_LABELS, annotations=_LABELS),
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


def library() -> str:
    """Return the schema of retry-sidecar-lib."""
    return _text("Values of the chart retry-sidecar-lib", _of_both() | {"state": _closed(sizeLimit=_AMOUNT)})


def _of_both() -> dict[str, Schema]:
    return {
        "global": _OBJECT,
        "image": _closed(
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
        "apiToken": _closed(existingSecret=_TEXT, key=_TEXT),
        "notify": _closed(existingSecret=_TEXT, key=_TEXT),
        "http": _closed(host=_TEXT, port=_PORT),
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
    """Return the YAML types of a value; the program checks the rest.

    With null Helm takes a default away: the templates leave such a setting out.
    """
    types = ["string", "number" if setting.kind.is_decimal else "integer", "null"]
    if setting.kind.is_switch:
        types = ["boolean", "null"]
    elif setting.kind.is_list:
        types = ["string", "integer", "array", "null"]
    elif setting.kind.is_mapping:
        types = ["string", "object", "null"]
    schema: Schema = {
        "description": f"{setting.help} It must be {setting.kind.allowed}.",
        "type": types,
        "minLength": 1,
    }
    if setting.kind.is_list:
        schema["items"] = {"type": ["string", "integer"]}
    elif setting.kind.is_mapping:
        fields = {"ORIGIN_POLICIES": per_origin(), "POLICIES": per_policy()}.get(setting.name)
        if fields is not None:
            own = {each.yaml_key: {"type": _setting(each)["type"], "minLength": 1} for each in fields}
            schema["additionalProperties"] = _closed(**own)
        else:
            schema["additionalProperties"] = {"type": ["string", "number"]}
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
