"""The JSON bodies of Kafka Connect's REST API, with its names."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict

from sidecar.api.bodies import Body
from sidecar.api.connect.levels import LEVELS

_NAME = "kafka-retry"
_WORKER = "10.0.0.7:8080"
_VERSION = "0.1.0"
_CLASS = "io.retrysidecar.RetrySidecarConnector"

SERVER_EXAMPLE: Final[JsonDict] = {
    "version": "4.3.1",
    "commit": "retry-sidecar-0.1.0",
    "kafka_cluster_id": "5L6g3nShT-eMCtK--X",
}
CONFIG_EXAMPLE: Final[JsonDict] = {
    "name": _NAME,
    "connector.class": _CLASS,
    "tasks.max": "4",
    "topics": "retry",
    "kafka.topic": "retry",
    "max.delay": "365d",
}
INFO_EXAMPLE: Final[JsonDict] = {
    "name": _NAME,
    "config": CONFIG_EXAMPLE,
    "tasks": [{"connector": _NAME, "task": 0}],
    "type": "sink",
}
TASK_STATUS_EXAMPLE: Final[JsonDict] = {"id": 0, "state": "RUNNING", "worker_id": _WORKER, "version": _VERSION}
STATUS_EXAMPLE: Final[JsonDict] = {
    "name": _NAME,
    "connector": {"state": "RUNNING", "worker_id": _WORKER, "version": _VERSION},
    "tasks": [TASK_STATUS_EXAMPLE],
    "type": "sink",
}
TASK_EXAMPLE: Final[JsonDict] = {
    "id": {"connector": _NAME, "task": 0},
    "config": {
        "task.class": "io.retrysidecar.RetrySidecarTask",
        "topics": "retry",
        "partitions": "0,1",
        "instance.id": "sidecar-0",
    },
}
OFFSETS_EXAMPLE: Final[JsonDict] = {
    "offsets": [{"partition": {"kafka_topic": "retry", "kafka_partition": 3}, "offset": {"kafka_offset": 1000}}]
}
PLUGIN_EXAMPLE: Final[JsonDict] = {"class": _CLASS, "type": "sink", "version": _VERSION}
KEY_EXAMPLE: Final[JsonDict] = {
    "name": "max.delay",
    "type": "STRING",
    "required": False,
    "default_value": "365d",
    "importance": "LOW",
    "documentation": "Longest delay accepted.",
    "group": "Retry Sidecar",
    "order_in_group": 20,
    "width": "MEDIUM",
    "display_name": "max.delay",
    "dependents": [],
}
VALIDATED_EXAMPLE: Final[JsonDict] = {
    "name": _CLASS,
    "error_count": 1,
    "groups": ["Retry Sidecar"],
    "configs": [
        {
            "definition": KEY_EXAMPLE,
            "value": {
                "name": "max.delay",
                "value": "soon",
                "recommended_values": [],
                "errors": ["max.delay='soon' is not allowed: it must be a duration"],
                "visible": True,
            },
        }
    ],
}
LEVEL_EXAMPLE: Final[JsonDict] = {"level": "INFO", "last_modified": None}

ConnectorState = Literal["UNASSIGNED", "RUNNING", "PAUSED", "STOPPED"]
TaskStateName = Literal["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING"]
ConfigType = Literal["STRING", "LIST", "BOOLEAN", "PASSWORD"]
Importance = Literal["HIGH", "LOW"]


class ServerInfo(Body):
    """Version and cluster of the server."""

    model_config = ConfigDict(json_schema_extra={"examples": [SERVER_EXAMPLE]})

    version: str = Field(description="Version of Kafka Connect, whose REST API this is.")
    commit: str = Field(description="Version of retry-sidecar.")
    kafka_cluster_id: str | None


class TaskId(Body):
    """A task of the connector."""

    connector: str
    task: int


class ConnectorInfo(Body):
    """The connector and its tasks."""

    model_config = ConfigDict(json_schema_extra={"examples": [INFO_EXAMPLE]})

    name: str
    config: dict[str, str]
    tasks: list[TaskId]
    type: Literal["sink"]


class ConnectorStatus(Body):
    """State of the connector."""

    state: ConnectorState
    worker_id: str
    version: str | None = Field(default=None, description="Version of retry-sidecar at the worker, if known.")


class TaskStatus(Body):
    """State of a task."""

    model_config = ConfigDict(json_schema_extra={"examples": [TASK_STATUS_EXAMPLE]})

    id: int
    state: TaskStateName
    worker_id: str
    version: str | None = Field(default=None, description="Version of retry-sidecar at the worker, if known.")
    trace: str | None = Field(default=None, description="Reason of the failure; only for a failed task.")


class ConnectorStateInfo(Body):
    """State of the connector and its tasks."""

    model_config = ConfigDict(json_schema_extra={"examples": [STATUS_EXAMPLE]})

    name: str
    connector: ConnectorStatus
    tasks: list[TaskStatus]
    type: Literal["sink"]


class Expanded(Body):
    """The parts that `?expand=` selects."""

    info: ConnectorInfo | None = None
    status: ConnectorStateInfo | None = None


class TaskInfo(Body):
    """A task and its configuration."""

    id: TaskId
    config: dict[str, str]


class TopicsOf(Body):
    """Topics that a connector reads."""

    topics: list[str]


class SinkPartition(Body):
    """A partition that the connector reads."""

    kafka_topic: str
    kafka_partition: int


class SinkPlace(Body):
    """An offset of the connector."""

    kafka_offset: int


class SinkOffset(Body):
    """The offset from which a partition is read next."""

    partition: SinkPartition
    offset: SinkPlace


class Offsets(Body):
    """Offsets of the connector."""

    model_config = ConfigDict(json_schema_extra={"examples": [OFFSETS_EXAMPLE]})

    offsets: list[SinkOffset]


class Plugin(Body):
    """A kind of connector."""

    kind: str = Field(alias="class")
    type: Literal["sink"]
    version: str


class ConfigKey(Body):
    """A setting as the plugin declares it."""

    name: str
    type: ConfigType
    required: bool
    default_value: str | None
    importance: Importance
    documentation: str
    group: str
    order_in_group: int
    width: Literal["MEDIUM"] = "MEDIUM"
    display_name: str
    dependents: list[str]


class ConfigValue(Body):
    """The given value of a setting, with its errors."""

    name: str
    value: str | None
    recommended_values: list[str]
    errors: list[str]
    visible: Literal[True] = True


class Config(Body):
    """A setting and its value."""

    definition: ConfigKey
    value: ConfigValue


class ConfigInfos(Body):
    """Result of the validation of a configuration."""

    model_config = ConfigDict(json_schema_extra={"examples": [VALIDATED_EXAMPLE]})

    name: str
    error_count: int
    groups: list[str]
    configs: list[Config]


class LoggerLevel(Body):
    """The level of a logger."""

    model_config = ConfigDict(json_schema_extra={"examples": [LEVEL_EXAMPLE]})

    level: str
    last_modified: int | None = Field(description="Epoch ms; null if the level has not changed since the start.")


class LevelWanted(BaseModel):
    """The level to set."""

    # A level that is missing or unknown has its own status with Connect: it is looked at later.
    model_config = ConfigDict(json_schema_extra={"examples": [{"level": "DEBUG"}], "required": ["level"]})

    level: Annotated[str | None, WithJsonSchema({"type": "string", "enum": list(LEVELS)})] = None
