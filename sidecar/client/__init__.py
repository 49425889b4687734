"""The former name of `retry_sidecar`, for one release."""

import warnings

from retry_sidecar import Delivery, Retry, RetryTopic, is_for_group

__all__ = ["Delivery", "Retry", "RetryTopic", "is_for_group"]

warnings.warn(
    "sidecar.client is retry_sidecar, a package of its own: import from there. The next release removes this name.",
    DeprecationWarning,
    stacklevel=2,
)
