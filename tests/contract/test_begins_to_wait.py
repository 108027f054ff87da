"""A run whose owner dies just as it begins to wait: what came for it in between is found, and nothing is asked twice."""

from typing import Any

from app.infra.database import Database
from tests.api import Api, call
from tests.contract.test_waiting import client_tool, ended, ids_of, result, supply, waiting, waits_again

# what its owner would have left, had it died between letting the run wait and looking at what had come
_NOT_LOOKED_AT = "UPDATE runs SET wake_at = now() + interval '0.1 seconds' WHERE id = $1 AND status = 'waiting'"
_CAME_EARLY = "UPDATE tool_calls SET resolution = $2 WHERE run_id = $1 AND id = $3"


async def left(database: Database, run: dict[str, Any], given: Any = None) -> None:
    if given is not None:
        resolution = {"kind": "result", "result": given}
        await database.pool.execute(_CAME_EARLY, run["id"], resolution, ids_of(run)[0])
    await database.pool.execute(_NOT_LOOKED_AT, run["id"])


class TestAnOwnerThatDiesAsTheRunBeginsToWait:
    async def test_a_result_that_had_come_is_found_and_the_run_goes_on(self, api: Api, migrated: Database) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Thanks.")
        await left(migrated, run, given="yes")
        played = await ended(api, run)
        assert (played.run["output"], played.results) == ("Thanks.", ["yes"])

    async def test_without_a_result_it_waits_on_for_the_same_call(self, api: Api, migrated: Database) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Thanks.")
        await left(migrated, run)
        again = await waits_again(api, run)
        assert again["pending"] == run["pending"]
        await supply(api, again, result(ids_of(again)[0], "yes"))
        played = await ended(api, run)
        assert (played.run["output"], played.run["iterations"]) == ("Thanks.", 2)


class TestARunThatWaits:
    async def test_wakes_when_the_first_of_its_calls_runs_out(self, api: Api, migrated: Database) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "never")
        query = "SELECT wake_at = (SELECT min(expires_at) FROM tool_calls WHERE run_id = runs.id) FROM runs WHERE id = $1"
        assert await migrated.pool.fetchval(query, run["id"])
        await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
