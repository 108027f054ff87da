"""A vault's pairs as they are kept: encrypted with AES-256-GCM under the vault's data key, each bound to its row."""

import hashlib
import hmac
import os
from dataclasses import dataclass

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.infra.crypto import DecryptionError
from app.redaction.tokens import Token
from app.redaction.vault import Pair

KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A pair as the table has it; see `VaultEntry`."""

    label: str
    number: int
    variant: int
    digest: bytes | None
    sealed: bytes | None


class Sealing:
    """Of one vault, with its data key of 32 bytes."""

    def __init__(self, owner: str, data_key: bytes) -> None:
        self._owner = owner
        self._cipher = AESGCM(_derived(data_key, b"values"))
        self._look_up = _derived(data_key, b"look-up")

    def row(self, pair: Pair) -> Row:
        token = pair.token
        if pair.value is None:
            return Row(token.label, token.number, token.variant, None, None)
        nonce = os.urandom(_NONCE_BYTES)
        plain = orjson.dumps([pair.value, pair.key])
        sealed = nonce + self._cipher.encrypt(nonce, plain, self._place(token))
        digest = hmac.digest(self._look_up, f"{token.label}\0{pair.value}".encode(), "sha256")
        return Row(token.label, token.number, token.variant, digest, sealed)

    def pair(self, row: Row) -> Pair:
        """Raises `DecryptionError` for a row that was changed or moved."""
        token = Token(row.label, row.number, row.variant)
        if row.sealed is None:
            return Pair(token, None)
        try:
            plain = self._cipher.decrypt(row.sealed[:_NONCE_BYTES], row.sealed[_NONCE_BYTES:], self._place(token))
        except InvalidTag:
            raise DecryptionError("a value of a vault does not fit its place") from None
        value, key = orjson.loads(plain)
        return Pair(token, value, key)

    def _place(self, token: Token) -> bytes:
        return f"{self._owner}\0{token.label}\0{token.number}\0{token.variant}".encode()


def _derived(data_key: bytes, use: bytes) -> bytes:
    return hmac.digest(data_key, use, hashlib.sha256)
