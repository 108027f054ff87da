"""Tokens back to values in what callers read: JSON and SSE frames, as bytes.

At rest every token is written exactly, and a `«` can only stand inside a JSON text. So each is replaced by its value as JSON
writes it, in one pass; nothing else of the bytes is looked at.
"""

import orjson

from app.infra.lines import one_line
from app.redaction.tokens import Token, replace_exact
from app.redaction.vault import Vault


def restored_bytes(data: bytes, vault: Vault) -> bytes:
    """UTF-8 JSON, or frames of it, with real values; unknown tokens stay as they are."""

    def written(token: Token) -> bytes | None:
        value = vault.value_of(token)
        return None if value is None else one_line(orjson.dumps(value)[1:-1])

    return replace_exact(data, written)


def unknown_in(data: bytes, vault: Vault) -> frozenset[Token]:
    """The tokens in it for which the vault has no value."""
    found: set[Token] = set()

    def look(token: Token) -> None:
        if vault.value_of(token) is None:
            found.add(token)

    replace_exact(data, look)
    return frozenset(found)
