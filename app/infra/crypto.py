"""Encryption of what is kept but must not be read from a leaked database: AES-256-GCM, bound to where it belongs.

A sealed value is `version 0x01 | length of key id | key id | 12-byte nonce | ciphertext and tag`. The first key encrypts,
all decrypt, so a key is rotated by putting a new one in front.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class DecryptionError(Exception):
    """The key that sealed a value is not among the configured ones, or the value was moved or changed."""


class Crypto:
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._first = next(iter(keys))

    def seal(self, plain: bytes, *, bound_to: str) -> bytes:
        """Encrypt; `bound_to` names the place (`tool:WORKSPACE:NAME`) that the value can be opened for."""
        nonce, key_id = os.urandom(12), self._first.encode()
        sealed = self._ciphers[self._first].encrypt(nonce, plain, bound_to.encode())
        return b"\x01" + bytes([len(key_id)]) + key_id + nonce + sealed

    def is_current(self, sealed: bytes) -> bool:
        """Whether it was the first key that encrypted it."""
        return sealed[2 : 2 + sealed[1]] == self._first.encode()

    def open(self, sealed: bytes, *, bound_to: str) -> bytes:
        """Decrypt, or raise `DecryptionError`."""
        end = 2 + sealed[1]
        cipher = self._ciphers.get(sealed[2:end].decode())
        if sealed[0] != 1 or cipher is None:
            raise DecryptionError("no configured encryption key fits this value")
        try:
            return cipher.decrypt(sealed[end : end + 12], sealed[end + 12 :], bound_to.encode())
        except InvalidTag:
            raise DecryptionError("a sealed value does not fit its place") from None


def fingerprint(secret: str) -> bytes:
    """SHA-256 of a key of ours. Keys are long and random, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).digest()


def new_key(kind: str) -> str:
    """A key with 256 bits of chance; its prefix tells people (and secret scanners) what it is."""
    return f"rondo_{kind}_{secrets.token_urlsafe(32)}"


def kept_encryption_key(data_dir: Path) -> str:
    """The key that the embedded default makes once and keeps beside its servers' data, readable by its owner only."""
    file = data_dir / "encryption_keys"
    if not file.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        made = "local:" + base64.b64encode(os.urandom(32)).decode()
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(made)
    return file.read_text().strip()
