"""The client for applications: sends messages to the retry topic, and recognises deliveries for a consumer group."""

from sidecar.client.retry import Delivery, Retry, RetryTopic, is_for_group

__all__ = ["Delivery", "Retry", "RetryTopic", "is_for_group"]
