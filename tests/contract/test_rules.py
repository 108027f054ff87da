"""Rules over the API (contract, section 6)."""

from typing import Any

import pytest

from app.infra.database import Database
from app.rules.repository import applying
from app.scope import Scope
from tests.api import TENANT, Api
from tests.contract.test_doors import UNKNOWN, problem
from tests.memories.scopes import SCOPES, body_of

BRIEF = {"tenant": TENANT, "content": "Be brief."}
FULL: dict[str, Any] = {
    "tenant": TENANT, "subject": {"type": "listing", "id": "7"}, "member": {"type": "agent", "id": "juan"},
    "content": "  Never promise a price.\n\n# Not even here: <b>\u2028`x`", "position": -3, "active": False,
}  # fmt: skip


class TestOneRule:
    async def test_it_is_given_verbatim_as_it_was_made(self, api: Api) -> None:
        made = await api.post("/v1/rules", FULL)
        assert {name: made[name] for name in FULL} == FULL
        assert made["id"].startswith("rule_")
        assert await api.get(f"/v1/rules/{made['id']}") == made

    async def test_a_tenant_and_its_content_are_all_it_needs(self, api: Api) -> None:
        made = await api.post("/v1/rules", BRIEF)
        assert (made["subject"], made["member"], made["position"], made["active"]) == (None, None, 0, True)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tenant": None}, {"content": ""}, {"content": " \n"}, {"content": None}, {"content": "x" * 20_001},
            {"position": "1"}, {"position": 2**40}, {"active": "yes"}, {"id": "rule_1"}, {"kind": "fact"},
        ],
    )  # fmt: skip
    async def test_what_is_wrong_is_refused_and_nothing_kept(self, api: Api, wrong: dict[str, Any]) -> None:
        problem(await api.call("POST", "/v1/rules", {**BRIEF, **wrong}), 422)
        assert (await api.get("/v1/rules"))["data"] == []

    async def test_two_axes_of_one_type_are_an_alias_conflict(self, api: Api) -> None:
        problem(await api.call("POST", "/v1/rules", {**BRIEF, "member": TENANT}), 422, "alias_conflict")

    async def test_the_same_key_gives_the_first_answer(self, api: Api) -> None:
        first = await api.call("POST", "/v1/rules", BRIEF, Idempotency_Key="one")
        again = await api.call("POST", "/v1/rules", BRIEF, Idempotency_Key="one")
        assert (again.status_code, again.content) == (201, first.content)
        assert len((await api.get("/v1/rules"))["data"]) == 1

    async def test_a_deleted_one_is_gone(self, api: Api) -> None:
        made = await api.post("/v1/rules", BRIEF)
        response = await api.call("DELETE", f"/v1/rules/{made['id']}")
        assert (response.status_code, response.content) == (204, b"")
        problem(await api.call("GET", f"/v1/rules/{made['id']}"), 404)

    async def test_an_unknown_one_is_not_found_before_the_body_is_judged(self, api: Api) -> None:
        for path in ("/v1/rules/rule_1", f"/v1/rules/rule_{UNKNOWN}", f"/v1/rules/mem_{UNKNOWN}"):
            problem(await api.call("GET", path), 404)
            problem(await api.call("PATCH", path, {"position": "no"}), 404)
            problem(await api.call("DELETE", path), 404)


class TestChanges:
    async def test_what_is_named_changes_and_nothing_else(self, api: Api) -> None:
        made = await api.post("/v1/rules", FULL)
        changed = (await api.call("PATCH", f"/v1/rules/{made['id']}", {"active": True})).json()
        assert {**changed, "updated_at": 0} == {**made, "active": True, "updated_at": 0}
        assert await api.get(f"/v1/rules/{made['id']}") == changed

    @pytest.mark.parametrize("wrong", [{"tenant": TENANT}, {"content": None}, {"content": " "}, {"active": None}])
    async def test_whose_it_is_and_null_are_refused(self, api: Api, wrong: dict[str, Any]) -> None:
        made = await api.post("/v1/rules", BRIEF)
        problem(await api.call("PATCH", f"/v1/rules/{made['id']}", wrong), 422)
        assert await api.get(f"/v1/rules/{made['id']}") == made


class TestLists:
    @pytest.mark.parametrize(
        ("query", "found"),
        [("", "GFEDCBA"), ("subject=null&member=null", "GA"), ("member=letrado:maria", "DC"), ("limit=2", "GF")],
    )
    async def test_each_axis_that_is_named_is_exact_newest_first(self, api: Api, query: str, found: str) -> None:
        for name, scope in SCOPES.items():
            await api.post("/v1/rules", {**body_of(scope), "content": name})
        assert "".join(one["content"] for one in (await api.get(f"/v1/rules?{query}"))["data"]) == found


class TestSending:
    async def sent(self, migrated: Database, api: Api, scope: Scope) -> list[str]:
        assert api.workspace_id is not None
        return await applying(migrated.pool, api.workspace_id, scope)

    async def test_they_go_by_axes_then_position_then_age(self, migrated: Database, api: Api) -> None:
        for content, scope, position in (
            ("both", "D", -9), ("member", "C", -5), ("subject 2", "B", 2), ("subject 1", "B", 1), ("tenant first", "A", 7),
            ("tenant second", "A", 7), ("tenant before", "A", 0), ("another file", "E", 0), ("another lawyer", "F", 0),
        ):  # fmt: skip
            await api.post("/v1/rules", {**body_of(SCOPES[scope]), "content": content, "position": position})
        assert await self.sent(migrated, api, SCOPES["D"]) == [
            "tenant before", "tenant first", "tenant second", "subject 1", "subject 2", "member", "both",
        ]  # fmt: skip

    async def test_one_that_is_not_active_is_not_sent(self, migrated: Database, api: Api) -> None:
        made = await api.post("/v1/rules", {**body_of(SCOPES["A"]), "content": "Be brief."})
        assert await self.sent(migrated, api, SCOPES["A"]) == ["Be brief."]
        await api.call("PATCH", f"/v1/rules/{made['id']}", {"active": False})
        assert await self.sent(migrated, api, SCOPES["A"]) == []

    async def test_another_workspace_sends_none(self, migrated: Database, api: Api, admin: Api) -> None:
        await api.post("/v1/rules", {**body_of(SCOPES["A"]), "content": "Be brief."})
        assert await self.sent(migrated, await admin.new_workspace(), SCOPES["A"]) == []
