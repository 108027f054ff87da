"""The OpenAPI document against what is really sent: events, calls of tools, deliveries."""

import json
from typing import Any

import jsonschema_rs
import pytest

from app.main import schema
from app.subscriptions.models import Topic
from tests.api import TENANT, Api, call, failing
from tests.contract.test_events import FIELDS, RICH, rich
from tests.tools_app import TestTools

DOCUMENT = schema()


def problems(name: str, value: Any) -> list[str]:
    """What the schema of this name has against it."""
    document = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    checker = jsonschema_rs.Draft202012Validator(document)
    return [error.message for error in checker.iter_errors(value)]


class TestEvents:
    async def test_every_event_is_as_the_document_says(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "pay", {"ok": True}, requires_approval=True)
        waits = await api.run(await api.new_session(), call("pay"), "Paid.")
        decision = {"decisions": [{"call_id": "*", "decision": "approve"}]}
        await api.post(f"/v1/runs/{waits['id']}/approvals", decision, 200)
        body = {"tenant": TENANT, "model": "scripted/x", "input": "Hi", "script": RICH}
        alone = await api.post("/v1/runs", body, 200)
        failed = await api.run(await api.new_session(), failing(400))
        events = [
            event.data
            for run_id in ((await rich(api, test_tools)).run["id"], waits["id"], alone["id"], failed["id"])
            for event in await api.events(run_id)
        ]
        assert [(event["type"], problems("RunEvent", event)) for event in events if problems("RunEvent", event)] == []
        assert {event["type"] for event in events} == set(FIELDS) - {"run.incomplete", "run.cancelled"}

    @pytest.mark.parametrize("changed", [{"type": "run.exploded"}, {"seq": "1"}, {"more": 1}])
    async def test_another_one_would_be_noticed(self, api: Api, changed: dict[str, Any]) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        (first, *_) = await api.events(run["id"])
        assert problems("RunEvent", {**first.data, **changed})


class TestSent:
    async def test_a_call_of_a_tool_is_as_the_document_says(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"items": []})
        session = await api.new_session(member={"type": "agent", "id": "juan"}, context={"user": 7})
        await api.run(session, call("search", {"q": 1}), "Done.")
        (received,) = search.requests
        assert problems("ToolCallSent", received.json) == []
        named = {parameter["name"].lower() for parameter in DOCUMENT["webhooks"]["tool.call"]["post"]["parameters"]}
        assert named <= set(received.headers)

    async def test_deliveries_are_as_the_document_says(self, api: Api, test_tools: TestTools) -> None:
        told = test_tools.hook("told", *[{}] * 4)
        await api.post("/v1/subscriptions", {"url": told.url, "events": [str(topic) for topic in Topic]})
        await test_tools.host(api, "pay", {"ok": True}, requires_approval=True)
        waits = await api.run(await api.new_session(), call("pay"), "Paid.")
        await api.post(f"/v1/runs/{waits['id']}/cancel", status=200)
        await told.received(3)
        bodies = [json.loads(request.body) for request in told.requests]
        assert {body["type"] for body in bodies} == {"run.waiting", "run.cancelled", "usage.recorded"}
        for body in bodies:
            assert problems("UsageTold" if body["type"] == "usage.recorded" else "RunTold", body) == []
