"""What is recalled, and how decisions are stored, on the real database."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from app.infra import clock
from app.infra.database import Database
from app.memories.admission import Add, Confirm, Context, Decision, Doubt, Line, Note, Pend, Proposal, Supersede, judge
from app.memories.by_models import read_shelf, store
from app.memories.notes import Kind
from app.memories.recall import Recalled, recall
from app.memories.writing import Origin
from app.providers.tokens import count_tokens, install_vocabulary
from app.rules.repository import applying
from app.scope import Scope
from tests.api import Api
from tests.memories.scopes import JUAN, OTHER_FIRM, SCOPES, SEEN, body_of


@pytest.fixture(scope="module", autouse=True)
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> None:
    install_vocabulary(Path(tmp_path_factory.mktemp("vocabulary")))


async def fill(api: Api) -> None:
    """One note in each scope."""
    for name, scope in SCOPES.items():
        await api.post("/v1/memories", {**body_of(scope), "content": f"The note of scope {name}."})


async def recalled(migrated: Database, api: Api, scope: Scope, query: str | None = None, max_tokens: int = 800) -> Recalled:
    assert api.workspace_id is not None
    return await recall(migrated.pool, api.workspace_id, scope, query, max_tokens, count_tokens)


def letters(block: str | None) -> str:
    return "".join(name for name in SCOPES if f"scope {name}." in (block or ""))


class TestWhatApplies:
    @pytest.mark.parametrize("name", SEEN)
    @pytest.mark.parametrize("query", [None, "What does the note say of the scope?"])
    async def test_a_session_sees_its_own_scopes_and_nobody_elses(
        self, migrated: Database, api: Api, name: str, query: str | None
    ) -> None:
        await fill(api)
        scope, seen = SEEN[name]
        found = await recalled(migrated, api, scope, query)
        assert letters(found.block) == seen
        assert len(found.considered) == len(seen)

    async def test_python_and_sql_say_the_same_of_every_pair_of_scopes(self, migrated: Database, api: Api) -> None:
        await fill(api)
        more = {"H": Scope(tenant=OTHER_FIRM, member=JUAN), "I": SCOPES["D"].model_copy(update={"member": None})}
        for scope in {**SCOPES, **more}.values():
            seen = "".join(name for name, kept in SCOPES.items() if kept.applies_to(scope))
            assert letters((await recalled(migrated, api, scope)).block) == seen

    async def test_another_workspace_sees_nothing(self, migrated: Database, api: Api, admin: Api) -> None:
        await fill(api)
        other = await admin.new_workspace()
        assert await recalled(migrated, other, SCOPES["A"], "note") == Recalled(None, ())

    async def test_ids_that_look_like_others_put_together_are_others(self, migrated: Database, api: Api) -> None:
        """Long ones too: an index has to bear them."""
        for identifier in ('1", "x', "1\n2", "é" * 255, "1"):
            scope = {"tenant": {"type": "firm", "id": identifier}, "member": {"type": "user", "id": "é" * 255}}
            await api.post("/v1/memories", {**scope, "content": f"Of {identifier[:5]!r}."})
            found = await recalled(migrated, api, Scope.model_validate(scope))
            assert len(found.considered) == 1

    @pytest.mark.parametrize("name", SEEN)
    async def test_rules_apply_by_the_same_scopes(self, migrated: Database, api: Api, name: str) -> None:
        for letter, scope in SCOPES.items():
            await api.post("/v1/rules", {**body_of(scope), "content": f"The rule of {letter}."})
        assert api.workspace_id is not None
        scope, seen = SEEN[name]
        assert sorted(await applying(migrated.pool, api.workspace_id, scope)) == [f"The rule of {one}." for one in seen]


class TestWhatIsSent:
    async def test_pending_ended_and_superseded_notes_are_not(self, migrated: Database, api: Api) -> None:
        """Also where no write has settled yet that their time is up."""
        (kept,) = await stored(migrated, api, [Add(note_of("Lives in Bilbao."))])
        await stored(migrated, api, [Supersede(str(kept), note_of("Lives in Vitoria."))])
        ended = Note(SCOPES["A"], Kind.FACT, "Ended in the world.", 3, (), clock.now() - timedelta(days=1))
        await stored(migrated, api, [Pend(note_of("Waits."), Doubt.READS_AS_ORDER), Add(ended)])
        past = {"expires_at": "2020-01-01T00:00:00Z"}
        await api.post("/v1/memories", {**body_of(SCOPES["B"]), "content": "Ran out.", **past})
        for query in (None, "ran ended waits lives"):
            block = (await recalled(migrated, api, SCOPES["B"], query)).block
            assert block is not None
            assert block.splitlines()[3:] == ["- Lives in Vitoria."]

    async def test_reading_changes_nothing(self, migrated: Database, api: Api) -> None:
        await fill(api)
        before = await migrated.pool.fetch("SELECT * FROM memories WHERE workspace_id = $1 ORDER BY id", api.workspace_id)
        first = await recalled(migrated, api, SCOPES["A"], "note")
        second = await recalled(migrated, api, SCOPES["A"], "note")
        after = await migrated.pool.fetch("SELECT * FROM memories WHERE workspace_id = $1 ORDER BY id", api.workspace_id)
        assert before == after
        assert first.block == second.block

    async def test_the_question_s_words_outweigh(self, migrated: Database, api: Api) -> None:
        for number in range(20):
            await api.post("/v1/memories", {**body_of(SCOPES["A"]), "content": f"Thing {number} is blue.", "importance": 4})
        wanted = await api.post("/v1/memories", {**body_of(SCOPES["A"]), "content": "Invoices leave on Mondays."})
        asked = await recalled(migrated, api, SCOPES["A"], "When do we send an invoice?", max_tokens=110)
        plain = await recalled(migrated, api, SCOPES["A"], None, max_tokens=110)
        assert wanted["id"] in [one.id for one in asked.considered if one.chosen]
        assert wanted["id"] not in [one.id for one in plain.considered if one.chosen]

    async def test_no_budget_reads_nothing(self, migrated: Database, api: Api) -> None:
        await fill(api)
        assert await recalled(migrated, api, SCOPES["A"], "note", max_tokens=0) == Recalled(None, ())

    @pytest.mark.parametrize("query", ["'", "\\", "a & b | !c <-> (d", ":*", "it's \\' x:*A", "\x00", "喜欢", "x" * 100_000])
    async def test_any_question_can_be_asked(self, migrated: Database, api: Api, query: str) -> None:
        await fill(api)
        assert letters((await recalled(migrated, api, SCOPES["A"], query)).block) == "A"


def note_of(content: str, *evidence: int) -> Note:
    return Note(SCOPES["A"], Kind.FACT, content, 3, evidence)


async def stored(
    migrated: Database, api: Api, decisions: Sequence[Decision], session_id: str | None = None
) -> list[str | None]:
    """Decisions as a job stores them, in one transaction."""
    assert api.workspace_id is not None
    origin = Origin(session_id or await api.new_session(**body_of(SCOPES["A"])))
    async with migrated.pool.acquire() as connection, connection.transaction():
        await read_shelf(connection, api.workspace_id, SCOPES["D"], [])
        return await store(connection, api.workspace_id, origin, decisions)


async def history(migrated: Database, memory_id: str | None) -> list[str]:
    rows = await migrated.pool.fetch("SELECT action FROM memory_events WHERE memory_id = $1 ORDER BY id", memory_id)
    return [row["action"] for row in rows]


class TestDecisions:
    async def test_a_note_names_the_user_s_messages_that_it_rests_on(self, migrated: Database, api: Api) -> None:
        session_id = await api.new_session(**body_of(SCOPES["A"]))
        run = await api.run(session_id, "Noted.", input="I live in Bilbao.", tools=[])
        (memory_id,) = await stored(migrated, api, [Add(note_of("Lives in Bilbao.", 1))], session_id)
        message = next(one for one in await api.messages(session_id) if one["role"] == "user")
        shown = await api.get(f"/v1/memories/{memory_id}")
        assert shown["source"] == {"session_id": run["session_id"], "message_ids": [message["id"]]}
        await api.call("DELETE", f"/v1/sessions/{session_id}")
        assert (await api.get(f"/v1/memories/{memory_id}"))["source"] == {"session_id": None, "message_ids": []}

    async def test_the_same_line_is_evidence_once(self, migrated: Database, api: Api) -> None:
        session_id = await api.new_session(**body_of(SCOPES["A"]))
        (memory_id,) = await stored(migrated, api, [Add(note_of("Lives in Bilbao.", 1))], session_id)
        assert memory_id is not None
        for positions, count in (((1,), 1), ((1, 3), 2), ((3,), 2)):
            await stored(migrated, api, [Confirm(memory_id, positions)], session_id)
            assert (await api.get(f"/v1/memories/{memory_id}"))["evidence_count"] == count
        assert await history(migrated, memory_id) == ["added", "confirmed"]

    async def test_a_superseded_note_stays_readable_beside_the_new_one(self, migrated: Database, api: Api) -> None:
        (old,) = await stored(migrated, api, [Add(note_of("Lives in Bilbao."))])
        (new,) = await stored(migrated, api, [Supersede(str(old), note_of("Lives in Vitoria."))])
        shown = await api.get(f"/v1/memories/{old}")
        assert (shown["status"], shown["superseded_by"], shown["content"]) == ("superseded", new, "Lives in Bilbao.")
        assert [one["id"] for one in (await api.get("/v1/memories"))["data"]] == [new]
        assert len((await api.get("/v1/memories?status=all"))["data"]) == 2
        assert await history(migrated, old) == ["added", "superseded"]

    async def test_nothing_is_stored_half(self, migrated: Database, api: Api) -> None:
        assert api.workspace_id is not None
        origin = Origin(await api.new_session(**body_of(SCOPES["A"])))
        wrong = Note(SCOPES["A"], Kind.FACT, "Too important.", 9, ())
        with pytest.raises(Exception, match="memories_importance"):
            async with migrated.pool.acquire() as connection, connection.transaction():
                await store(connection, api.workspace_id, origin, [Add(note_of("Good.")), Add(wrong)])
        assert (await api.get("/v1/memories?status=all"))["data"] == []

    async def test_what_was_deleted_is_not_drawn_again_until_a_person_writes_it(self, migrated: Database, api: Api) -> None:
        assert api.workspace_id is not None
        lines = (Line(1, 1, "user", "Tenemos la oficina en Bilbao"),)
        proposal = Proposal("add", "despacho", "everyone", "fact", "La oficina está en Bilbao.", 3, (1,))

        async def draw() -> Decision:
            async with migrated.pool.acquire() as connection, connection.transaction():
                shelf = await read_shelf(connection, str(api.workspace_id), SCOPES["A"], [proposal.text])
                given = Context(SCOPES["A"], lines, notes=shelf.notes, deleted=shelf.deleted)
                return judge([proposal], given)[0]

        assert isinstance(await draw(), Add)
        body = {**body_of(SCOPES["A"]), "content": proposal.text}
        made = await api.post("/v1/memories", body)
        assert isinstance(await draw(), Confirm)
        await api.call("DELETE", f"/v1/memories/{made['id']}")
        assert str(await draw()) == "Refuse(reason=<Refusal.DELETED_BEFORE: 'deleted_before'>)"
        again = await api.post("/v1/memories", {**body, "expires_at": "2020-01-01T00:00:00Z"})
        assert again["id"] != made["id"]
        assert isinstance(await draw(), Add)
