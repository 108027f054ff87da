"""The history of a session as it stands in the database."""

from collections.abc import Sequence

import pytest

from app.infra import clock, ids
from app.infra.database import Database
from app.providers.tokens import count_tokens
from app.sessions import summaries
from app.sessions.compression import HistoryOptions
from app.sessions.history import read_history
from tests.api import Api

OPTIONS = HistoryOptions(100, 2, ("lab/sum",))


async def store(db: Database, session: str, *messages: tuple[str, str], tokens: Sequence[int | None] = ()) -> None:
    for position, (role, content) in enumerate(messages, 1):
        await db.pool.execute(
            "INSERT INTO messages (id, session_id, position, role, content, tokens, created_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            ids.new(ids.MESSAGE), session, position, role, content,
            tokens[position - 1] if tokens else None, clock.now(),
        )  # fmt: skip


@pytest.fixture
async def session(api: Api) -> str:
    return await api.new_session()


class TestTurns:
    async def test_a_turn_is_a_user_message_and_all_prose_up_to_the_next(self, migrated: Database, session: str) -> None:
        await store(
            migrated, session, ("assistant", "Welcome."), ("user", "a"), ("assistant", "let me see"), ("tool", "{}"),
            ("assistant", " \n"), ("assistant", "b"), ("user", "c"), ("user", "d"),
        )  # fmt: skip
        history = await read_history(migrated.pool, session)
        assert [[message.text for message in turn.messages] for turn in history.turns] == [
            ["Welcome."], ["a", "let me see", "b"], ["c"], ["d"],
        ]  # fmt: skip
        assert [turn.last_position for turn in history.turns] == [1, 6, 7, 8]

    async def test_tokens_are_those_that_were_stored_and_others_are_counted(self, migrated: Database, session: str) -> None:
        await store(migrated, session, ("user", "hello there"), ("assistant", "x"), tokens=[None, 1000])
        history = await read_history(migrated.pool, session)
        assert history.tokens == count_tokens("hello there") + 1000

    async def test_another_vocabulary_counts_for_itself(self, migrated: Database, session: str) -> None:
        text = "Η γρήγορη καφέ αλεπού"
        await store(migrated, session, ("user", text), tokens=[count_tokens(text)])
        older = await read_history(migrated.pool, session, vocabulary="cl100k_base")
        assert older.tokens == count_tokens(text, "cl100k_base") != count_tokens(text)

    async def test_runs_store_the_tokens_of_their_prose(self, migrated: Database, api: Api, session: str) -> None:
        await api.run(session, "An answer of some words.", input="A question.")
        rows = await migrated.pool.fetch("SELECT content, tokens FROM messages WHERE session_id = $1", session)
        assert [row["tokens"] for row in rows] == [count_tokens(row["content"]) for row in rows]


class TestTheSummary:
    async def test_it_stands_for_everything_up_to_its_position(self, migrated: Database, session: str) -> None:
        await store(migrated, session, ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
        await summaries.mark(migrated.pool, session, OPTIONS)
        claimed = await summaries.claim(migrated.pool, session, "t", 15)
        assert claimed is not None
        assert await summaries.commit(migrated.pool, claimed, "S", 1, "lab/sum", 2, has_more=False)
        history = await read_history(migrated.pool, session)
        assert (history.summary, [message.text for message in history.messages]) == ("S", ["c", "d"])
        assert not await summaries.commit(migrated.pool, claimed, "again", 1, "lab/sum", 4, has_more=False)

    async def test_a_mark_that_comes_while_somebody_is_at_it_is_not_lost(self, migrated: Database, session: str) -> None:
        await summaries.mark(migrated.pool, session, OPTIONS)
        claimed = await summaries.claim(migrated.pool, session, "t", 15)
        assert claimed is not None
        assert await summaries.claim(migrated.pool, session, "another", 15) is None
        await summaries.mark(migrated.pool, session, OPTIONS)
        await summaries.release(migrated.pool, claimed)
        again = await summaries.claim(migrated.pool, session, "another", 15)
        assert again is not None
        await summaries.release(migrated.pool, again)
        assert await summaries.claim(migrated.pool, session, "third", 15) is None

    async def test_a_session_that_is_gone_is_not_marked(self, migrated: Database) -> None:
        assert not await summaries.mark(migrated.pool, ids.new(ids.SESSION), OPTIONS)
