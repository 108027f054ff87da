"""What the API answers, with values in the place of tokens."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson

from app.redaction.opened import Vaults
from app.redaction.showing import restored_bytes, unknown_in
from app.redaction.tokens import Token
from app.redaction.vault import SessionVault, Vault


def restored_value(value: Any, vault: Vault | None) -> Any:
    """JSON to be put into an answer."""
    return value if vault is None else orjson.Fragment(restored_bytes(orjson.dumps(value), vault))


async def restored(vaults: Vaults, value: Any, owner: str | None) -> Any:
    """JSON of one vault's owner; None: nothing in it is a token, and nothing is done."""
    return value if owner is None else restored_value(value, (await vaults.read([owner])).get(owner))


async def restored_list(vaults: Vaults, values: Sequence[Any], owners: Sequence[str | None]) -> list[Any]:
    """The same for many, each with its owner, in one round trip."""
    named = [owner for owner in owners if owner is not None]
    read = await vaults.read(named) if named else {}
    return [restored_value(one, read.get(owner or "")) for one, owner in zip(values, owners, strict=True)]


async def restored_frames(
    frames: AsyncIterator[bytes], vaults: Vaults, owner: Callable[[], Awaitable[str | None]]
) -> AsyncIterator[bytes]:
    """SSE frames as they come. What others have put into the vault meanwhile is read when it is first met."""
    vault, unknown = SessionVault(), frozenset[Token]()
    async for part in frames:
        if not unknown_in(part, vault) <= unknown:
            named = await owner()
            vault = (await vaults.read([named])).get(named, vault) if named else vault
            unknown = unknown | unknown_in(part, vault)
        yield restored_bytes(part, vault)
