"""A vault in use: texts to tokens and back, with whatever is new stored before anybody gets to see its token."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from app.infra.crypto import Crypto, DecryptionError
from app.infra.database import Connection, Pool
from app.infra.telemetry import log
from app.redaction import recogniser, repository
from app.redaction.dictionary import Entry
from app.redaction.labels import LONG_TEXT_CHARS, RedactionError
from app.redaction.redactor import Redactor
from app.redaction.repository import VaultGone
from app.redaction.restorer import Restored, restore, restore_json
from app.redaction.sealing import Sealing
from app.redaction.vault import Pair, SessionVault

_BATCH_CHARS = 100_000
_TRIES = 100

Made = TypeVar("Made")


class RedactionFailed(Exception):
    """Something could not be made tokens, so that nothing of it may be sent or kept. The text holds no value."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: the kinds (None: all), and what the caller names beside them."""

    labels: frozenset[str] | None = None
    entries: tuple[Entry, ...] = ()

    def redactor(self, vault: SessionVault, known: Iterable[Pair]) -> Redactor:
        return Redactor(vault, self.entries, recogniser.looking(self.labels), known)


class Live:
    """A vault in this process, shared by all who use it at the same time. Without a `sealing` nothing of it is stored."""

    def __init__(self, sealing: Sealing | None, pairs: Iterable[Pair]) -> None:
        self.sealing, self.vault = sealing, SessionVault(pairs)
        self.lock = asyncio.Lock()


class OpenedVault:
    """One user of a vault, with what it looks for. Raises `RedactionFailed`; then nothing may be sent."""

    def __init__(self, db: Connection | Pool, owner: str, live: Live, wanted: Wanted) -> None:
        self._db, self.owner, self._live, self._wanted = db, owner, live, wanted
        self.vault = live.vault
        self._redactor = wanted.redactor(self.vault, self.vault.pairs())
        self._generation = self.vault.generation
        self._done: dict[tuple[bool, str], str] = {}

    async def redact(self, text: str, *, trusted: bool = False) -> str:
        return (await self.redact_all([text], trusted=trusted))[0]

    async def redact_all(self, texts: Iterable[str], *, trusted: bool = False) -> list[str]:
        """Each text with a token in the place of each value; one that was redacted before costs nothing."""
        given = list(texts)
        async with self._live.lock:
            while True:
                generation = self.vault.generation
                fresh = dict.fromkeys(text for text in given if (trusted, text) not in self._known())
                for batch in _batches(fresh):
                    made = await self._worked(partial(Redactor.redact_all, texts=batch, trusted=trusted), batch)
                    self._done |= {(trusted, text): one for text, one in zip(batch, made, strict=True)}
                await self._store()
                if generation == self.vault.generation:
                    return [self._done[trusted, text] for text in given]

    async def redact_json(self, value: Any, *, trusted: bool = False, labels: Mapping[str, str] | None = None) -> Any:
        """The JSON value with its texts and keys redacted; `labels` says of paths of what kind their texts are."""
        work = partial(Redactor.redact_json, value=value, trusted=trusted, labels=labels)
        size = [json.dumps(value, ensure_ascii=False)]
        async with self._live.lock:
            while True:
                generation = self.vault.generation
                self._known()
                made = await self._worked(work, size)
                await self._store()
                if generation == self.vault.generation:
                    return made

    def redact_known(self, value: Any) -> Any:
        """At once, for what is made of values that are in the vault already. Whatever else is found is stored later."""
        try:
            return self._wanted.redactor(self.vault, self.vault.pairs()).redact_json(value)
        except Exception as error:
            raise _failure(error) from None

    def restore(self, text: str) -> str:
        return restore(text, self.vault)

    def restore_json(self, value: Any) -> Restored:
        return restore_json(value, self.vault)

    async def store(self) -> None:
        """Store what is new, where it was not yet."""
        if self.vault.fresh():
            async with self._live.lock:
                await self._store()

    def _known(self) -> dict[tuple[bool, str], str]:
        """What was redacted under the present generation of tokens."""
        if self._generation != self.vault.generation:
            self._generation, self._done = self.vault.generation, {}
            self._redactor = self._wanted.redactor(self.vault, self.vault.pairs())
        return self._done

    async def _worked(self, work: Callable[[Redactor], Made], texts: Sequence[str]) -> Made:
        try:
            if sum(map(len, texts)) > LONG_TEXT_CHARS:
                return await asyncio.to_thread(work, self._redactor)
            return work(self._redactor)
        except Exception as error:
            raise _failure(error) from None

    async def _store(self) -> None:
        sealing = self._live.sealing
        if sealing is None:
            return
        for _ in range(_TRIES):
            fresh = self.vault.fresh()
            if not fresh:
                return
            try:
                if await repository.keep(self._db, self.owner, [sealing.row(pair) for pair in fresh]):
                    self.vault.mark_stored(fresh)
                    return
                self.vault.rebase(await repository.pairs(self._db, self.owner, sealing))
            except (DecryptionError, VaultGone) as error:
                raise RedactionFailed(str(error)) from None
        raise RedactionFailed("others were always faster")


def _batches(texts: Iterable[str]) -> Iterable[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _BATCH_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _failure(error: Exception) -> RedactionFailed:
    """A detector's own message may hold what it was reading."""
    return RedactionFailed(str(error) if isinstance(error, RedactionError) else f"a detector raised {type(error).__name__}")


class Vaults:
    """All vaults, as a process sees them. It keeps none that nobody uses."""

    def __init__(self, pool: Pool, crypto: Crypto) -> None:
        self._pool, self._crypto = pool, crypto
        self._live: WeakValueDictionary[str, Live] = WeakValueDictionary()

    async def open(self, owner: str, wanted: Wanted, whose: Mapping[str, Any], db: Connection | None = None) -> OpenedVault:
        """For redacting; makes the vault where there is none. `whose` as `repository.make` has it; `db` is a transaction
        to be used for it all."""
        used = db or self._pool
        try:
            loaded = (await repository.load(used, self._crypto, [owner])).get(owner)
            if loaded is None:
                await repository.make(used, self._crypto, owner, whose)
                loaded = (await repository.load(used, self._crypto, [owner])).get(owner)
        except (DecryptionError, VaultGone) as error:
            raise RedactionFailed(str(error)) from None
        if loaded is None:
            raise RedactionFailed("the vault was erased")
        live = self._live.get(owner)
        if live is None:
            live = self._live[owner] = Live(loaded.sealing, loaded.pairs)
        else:
            async with live.lock:
                live.vault.rebase(loaded.pairs)
        return OpenedVault(used, owner, live, wanted)

    async def trial(self, owner: str, wanted: Wanted) -> OpenedVault:
        """For redacting without storing anything: what is new gets the tokens that it would get now."""
        known = (await self.read([owner])).get(owner)
        return OpenedVault(self._pool, owner, Live(None, known.pairs() if known else ()), wanted)

    async def read(self, owners: Iterable[str]) -> dict[str, SessionVault]:
        """For restoring: those that there are and that can be read. Without a vault tokens are shown as they are."""
        try:
            loaded = await repository.load(self._pool, self._crypto, sorted(set(owners)))
        except DecryptionError as error:
            log.error("vault_unreadable", reason=str(error))
            return {}
        return {owner: SessionVault(one.pairs) for owner, one in loaded.items()}
