"""The part of Kafka Connect's REST API that its tools call: the sidecar as one connector, its instances as tasks."""

from sidecar.api.connect.connector import Worker

__all__ = ["Worker"]
