"""`python -m bench.recall`: how often the note that answers a question is found. See bench/README.md."""

import argparse
import asyncio
import csv
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import migrations
from app.infra import ids
from app.infra.database import Database, connect
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.settings import Settings
from app.memories import repository, writing
from app.memories.notes import Source
from app.memories.recall import recall
from app.providers.tokens import count_tokens, install_vocabulary
from app.scope import Reference, Scope

FOLDER = Path(__file__).parent
BLOCK_TOKENS = 200
ENGLISH = {"studio", "clinic"}


@dataclass(frozen=True, slots=True)
class Question:
    answer: str
    scope: Scope
    text: str

    @property
    def language(self) -> str:
        return "English" if self.scope.tenant.type in ENGLISH else "Spanish"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what came of it: the place of its note among what was found (from 1), and whether it was sent."""

    question: Question
    place: int | None
    was_sent: bool


def rows_of(name: str) -> Iterator[list[str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from (row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if not row[0].startswith("#"))


def scope_of(tenant: str, subject: str, member: str) -> Scope:
    """`expediente 7` is the thing 7 of type `expediente`; `-` is none."""

    def axis(text: str) -> Reference | None:
        kind, _, identifier = text.rpartition(" ")
        return None if text == "-" else Reference(type=kind, id=identifier)

    return Scope(tenant=Reference(type=tenant, id="1"), subject=axis(subject), member=axis(member))


def questions() -> list[Question]:
    return [Question(answer, scope_of(*axes), text) for answer, *axes, text in rows_of("questions.tsv")]


async def store_notes(database: Database) -> tuple[str, dict[str, str]]:
    """In a workspace of their own; its id, and the names of the notes by their ids."""
    workspace_id, names = ids.new(ids.WORKSPACE), {}
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO workspaces (id, name, created_at) VALUES ($1, 'recall', now())", workspace_id)
        for name, tenant, subject, member, kind, importance, text in rows_of("notes.tsv"):
            values = {"kind": kind, "importance": int(importance), "source": Source.API}
            scope = scope_of(tenant, subject, member)
            names[await writing.insert(connection, workspace_id, scope, text, values)] = name
    await database.pool.execute("ANALYZE memories")
    return workspace_id, names


async def ask(database: Database, workspace_id: str, names: dict[str, str], question: Question) -> Asked:
    found = await repository.search(database.pool, workspace_id, question.scope, question.text, 50)
    places = {names[row["id"]]: place for place, (row, _) in enumerate(found, 1)}
    recalled = await recall(database.pool, workspace_id, question.scope, question.text, BLOCK_TOKENS, count_tokens)
    sent = {names[note.id] for note in recalled.considered if note.chosen}
    return Asked(question, places.get(question.answer), question.answer in sent)


def row(title: str, asked: Sequence[Asked]) -> str:
    def share(hits: Any) -> str:
        return f"{sum(hits) / len(asked):.3f}"

    first = share(one.place == 1 for one in asked)
    five = share(one.place is not None and one.place <= 5 for one in asked)
    return f"| {title} | {len(asked)} | {first} | {five} | {share(one.was_sent for one in asked)} |"


async def measure(database_url: str, *, tell_misses: bool) -> None:
    database = await connect(database_url)
    try:
        await migrations.upgrade(database.engine)
        workspace_id, names = await store_notes(database)
        print(f"{len(names)} notes; `sent` = in a block of {BLOCK_TOKENS} tokens\n")
        print("| | questions | hit@1 | hit@5 | sent |\n|---|---|---|---|---|")
        if await database.pool.fetchval("SELECT likeness('{a}', '{a}') IS NOT NULL"):
            await tell("words and trigrams", database, workspace_id, names, tell_misses=tell_misses)
            await database.pool.execute("DROP EXTENSION pg_trgm")
        else:
            print("| words and trigrams | not available: this server has no pg_trgm | | | |")
        await tell("words", database, workspace_id, names, tell_misses=tell_misses)
    finally:
        await database.close()


async def tell(title: str, database: Database, workspace_id: str, names: dict[str, str], *, tell_misses: bool) -> None:
    asked = [await ask(database, workspace_id, names, question) for question in questions()]
    print(row(title, asked))
    for language in ("English", "Spanish"):
        print(row(f"{title}, {language}", [one for one in asked if one.question.language == language]))
    if tell_misses:
        for one in asked:
            if one.place != 1:
                print(f"  {one.question.answer} place {one.place}: {one.question.text}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recall", description=__doc__)
    parser.add_argument("--pg-bin", type=Path, help="programs of a PostgreSQL that has pg_trgm, e.g. a system one")
    parser.add_argument("--misses", action="store_true", help="list the questions whose note was not found first")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rondo-recall-"))
    folder.chmod(0o755)
    try:
        install_vocabulary(folder / "vocabulary")
        with EmbeddedServers(Settings(data_dir=folder / "servers", pg_bin=given.pg_bin), fast=True) as servers:
            asyncio.run(measure(servers.database_url, tell_misses=given.misses))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
