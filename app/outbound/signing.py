"""Signatures as Standard Webhooks has them (https://www.standardwebhooks.com), version `v1`: HMAC-SHA256."""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence
from functools import lru_cache

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    """A fresh secret: `whsec_` and the base64 of 32 random bytes."""
    return SECRET_PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()


@lru_cache(maxsize=1024)
def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError("a webhook secret is whsec_ and the base64 of 24 to 64 bytes")
    return key


def sign(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one `v1,…` per secret, separated by spaces.

    It covers the id, the timestamp (seconds) and the exact bytes of the body. Raises ValueError for a secret that is none;
    the text does not show it.
    """
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return " ".join(f"v1,{_signature(_key(secret), signed)}" for secret in secrets)


def _signature(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
