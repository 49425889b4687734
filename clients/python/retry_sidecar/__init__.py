"""The client of retry-sidecar: retry records, filters for deliveries, and changes of pending messages.

`retry_sidecar.confluent` and `retry_sidecar.aiokafka` have handlers that commit after delivery.
"""

from retry_sidecar.consumed import Consumed, attempt_of, is_for_group, timer_id_of
from retry_sidecar.headers import Retry, exception_name
from retry_sidecar.http import Change, NoOutcome, Outcome, Sidecar, SidecarRefused
from retry_sidecar.progress import RepeatFilter, Result, RetryingStopped, RetryNotDelivered
from retry_sidecar.record import RetryRecord, retry_record
from retry_sidecar.topic import Delivery, RetryTopic

__all__ = [
    "Change",
    "Consumed",
    "Delivery",
    "NoOutcome",
    "Outcome",
    "RepeatFilter",
    "Result",
    "Retry",
    "RetryNotDelivered",
    "RetryRecord",
    "RetryTopic",
    "RetryingStopped",
    "Sidecar",
    "SidecarRefused",
    "attempt_of",
    "exception_name",
    "is_for_group",
    "retry_record",
    "timer_id_of",
]
