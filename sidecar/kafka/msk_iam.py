"""Tokens for Amazon MSK with IAM: `OAUTH_CALLBACK=sidecar.kafka.msk_iam:token`. Needs the extra `msk`."""

from __future__ import annotations

import os

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider


def token(config: str) -> tuple[str, float]:
    """Return a token that AWS credentials of the process sign, and its expiry in epoch seconds.

    Args:
        config: `sasl.oauthbearer.config`: `region=eu-central-1`, or empty for the region of AWS_REGION.

    Raises:
        ValueError: There is no region.
        Exception: AWS's libraries find no credentials; the text says where they looked.
    """
    given = dict(pair.partition("=")[::2] for pair in config.split())
    region = given.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ValueError("there is no region: set AWS_REGION, or sasl.oauthbearer.config to region=<region>")
    text, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return text, expires_ms / 1000
