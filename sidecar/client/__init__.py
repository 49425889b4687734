"""For applications: send messages to the retry topic, and know which fired ones are theirs."""

from sidecar.client.retry import Delivery, Retry, RetryTopic, is_for_group

__all__ = ["Delivery", "Retry", "RetryTopic", "is_for_group"]
