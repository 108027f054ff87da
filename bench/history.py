"""`python -m bench.history`: what a turn of a long conversation costs in tokens, beside sending everything each time.

A real PostgreSQL and the real compression, with a summarising model that writes as many tokens as it may. A turn is a
question of about 40 tokens and an answer of about 120.
"""

import asyncio
import base64
import itertools
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.settings import Settings
from app.infra.telemetry import configure_logging
from app.loop.messages import Reply
from app.loop.ports import Emit, ModelRequest
from app.process import Process, open_process
from app.providers.tokens import count_tokens
from app.providers.windows import Window
from app.runs.compressor import Compressor
from app.runs.side_calls import ModelPort
from app.scope import Reference, Scope
from app.serving import with_servers
from app.sessions import repository, summaries
from app.sessions.compression import HistoryOptions
from app.sessions.history import read_history
from app.sessions.models import ImportedMessage

SHOWN = (10, 50, 100, 200)
WORDS = tuple(
    sorted(
        {"flat", "street", "budget", "price", "rooms", "light", "balcony", "week", "visit", "agent", "offer", "loan",
         "river",
         "school", "market", "quiet", "north", "south", "second", "third", "euros", "metres", "kitchen", "lift", "terrace",
         "owner", "signed", "moved", "asked", "found", "agreed", "later", "before", "maybe"}
    )
)  # fmt: skip


@dataclass
class Summariser:
    """The Provider port: writes a summary as long as it may be, and keeps count."""

    options: HistoryOptions
    calls: int = 0
    tokens: int = 0
    rest: Iterator[str] = field(default_factory=lambda: itertools.cycle(WORDS))

    async def ask(self, request: ModelRequest) -> Reply:
        text = " ".join(itertools.islice(self.rest, self.options.summary_tokens))
        self.calls += 1
        self.tokens += sum(count_tokens(message.text) for message in request.messages) + count_tokens(text)
        return Reply(text, model="bench/summariser")


def turn(number: int, chance: random.Random) -> Sequence[ImportedMessage]:
    question = f"{number}: " + " ".join(chance.choices(WORDS, k=36))
    return (
        ImportedMessage(role="user", content=question),
        ImportedMessage(role="assistant", content=" ".join(chance.choices(WORDS, k=118))),
    )


async def play(process: Process, workspace_id: str, options: HistoryOptions) -> None:
    pool, chance = process.database.pool, random.Random(1)
    summariser = Summariser(options)

    async def model_for(run: Mapping[str, Any], emit: Emit, attempts_made: int) -> ModelPort:
        return ModelPort(summariser, Window(128_000, 4096))

    compressor = Compressor(pool, model_for, process.queue, 15.0)
    scope = Scope(tenant=Reference(type="organization", id="1"))
    session = await repository.create(pool, workspace_id, scope.as_columns())
    everything = sent_in_all = everything_in_all = 0
    print(f"budget {options.token_budget}, the last {options.keep_recent_turns} turns verbatim")
    print("  turn   history sent   everything   |  so far: sent   of it summaries   everything   saved")
    for number in range(1, max(SHOWN) + 1):
        history = await read_history(pool, session.id)
        sent_in_all, everything_in_all = sent_in_all + history.tokens, everything_in_all + everything
        if number in SHOWN:
            cost = sent_in_all + summariser.tokens
            print(
                f"{number:6} {history.tokens:14,} {everything:12,}   |{cost:15,} {summariser.tokens:17,} "
                f"{everything_in_all:12,} {1 - cost / everything_in_all:7.0%}"
            )
        messages = turn(number, chance)
        tokens = [count_tokens(message.content) for message in messages]
        everything += sum(tokens)
        async with pool.acquire() as connection, connection.transaction():
            await repository.import_messages(connection, session.id, messages, tokens)
            due = await summaries.mark_if_over(connection, session.id, options)
        if due:
            await compressor.compress(session.id)
    print(f"  {summariser.calls} summaries\n")


async def measure(settings: Settings) -> None:
    async with open_process(settings) as process:
        await migrations.upgrade(process.database.engine)
        await ensure_keys(process.database.pool, settings)
        workspace_id = await process.database.pool.fetchval("SELECT id FROM workspaces LIMIT 1")
        for budget, keep in ((8000, 6), (4000, 6), (2000, 4)):
            await play(process, workspace_id, HistoryOptions(budget, keep, ("bench/summariser",)))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rondo-bench-") as folder:
        settings = Settings(data_dir=Path(folder), encryption_keys="bench:" + base64.b64encode(b"k" * 32).decode())
        configure_logging("warning", "text")
        with EmbeddedServers(settings, fast=True) as servers:
            asyncio.run(measure(with_servers(settings, servers)))


if __name__ == "__main__":
    main()
