"""The description of one setting."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.settings import client
from sidecar.settings.kinds import Kind


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting: everything but its default."""

    kind: Kind
    help: str
    name: str = ""
    """Upper snake, as in the environment after KAFKA_RETRY_; the attribute's name unless given."""
    attribute: str = ""
    aliases: tuple[str, ...] = ()
    """IBM's names for it, in the environment and in YAML."""
    secret: bool = False
    common: bool = False
    """Most installations set it: Connect's importance HIGH."""
    default_text: str = ""
    """Said instead of the default where that depends on something."""
    per_origin: bool = False
    """ORIGIN_POLICIES can give it for single origins, and POLICIES by name."""
    not_by_name: bool = False
    """It belongs to an origin: POLICIES cannot give it."""

    @property
    def env(self) -> str:
        return f"KAFKA_RETRY_{self.name}"

    @property
    def file_name(self) -> str:
        """The name that gives the value of a secret in a file."""
        return f"{self.name}_FILE"

    @property
    def yaml_key(self) -> str:
        return self.name.lower()

    @property
    def flag(self) -> str:
        return f"--{self.name.lower().replace('_', '-')}"

    @property
    def negative_flag(self) -> str:
        """The flag that sets a true-or-false setting to false."""
        return f"--no-{self.flag.removeprefix('--')}"

    def show(self, value: object) -> str:
        """Return the value as text, masked when secret; a value that is not set is the empty text."""
        if value is None:
            return ""
        return client.MASK if self.secret else self.kind.show(value)


WITHOUT_MEANING = {
    "JAAS_LOGIN_MODULE": "SASL_MECHANISM determines the login module",
    "SSL_PROTOCOL": "OpenSSL negotiates the TLS version with the broker",
    "SSL_ENABLED_PROTOCOLS": "OpenSSL negotiates the TLS version with the broker",
    "DEFAULT_KEY_SERDE": "keys are kept byte for byte",
}
"""IBM's names that are accepted and ignored -> why."""
