"""The part of Kafka Connect's REST API that its tools call: the sidecar as one connector, its instances as tasks."""

from sidecar.api.connect.connector import Others, Worker

__all__ = ["Others", "Worker"]
