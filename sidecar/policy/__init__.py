"""The policy: when a message is due, and whether it is retried, dropped or dead-lettered."""

from sidecar.policy.config import PolicyConfig
from sidecar.policy.policy import Policy, Verdict

__all__ = ["Policy", "PolicyConfig", "Verdict"]
