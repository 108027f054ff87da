"""Trying a tool by hand: `POST /v1/tools/{name}/test`."""

import json

from standardwebhooks import Webhook

from tests.api import Api
from tests.tools.webhook_server import Reply
from tests.tools_app import TestTools


class TestTrial:
    async def test_it_makes_one_real_signed_call_and_shows_both_sides(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", {"items": []})
        shown = await api.post("/v1/tools/search/test", {"arguments": {}, "context": {"user": 7}}, 200)
        sent = hook.requests[0]
        assert shown["request"]["body"].encode() == sent.body
        assert json.loads(sent.body)["data"]["context"] == {"user": 7}
        Webhook(hook.secret).verify(sent.body, shown["request"]["headers"])
        assert shown["response"]["status"] == 200
        assert json.loads(shown["response"]["body"]) == shown["result"] == {"items": []}
        assert shown["outcome"] == "empty"

    async def test_the_tools_own_headers_stay_hidden(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", {"ok": True}, headers={"X-Api-Key": "very-secret-value"})
        shown = await api.post("/v1/tools/search/test", {"arguments": {}}, 200)
        assert hook.requests[0].headers["x-api-key"] == "very-secret-value"
        assert "very-secret-value" not in json.dumps(shown)

    async def test_a_refusal_shows_what_a_model_would_read(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", Reply(422, b'{"message": "no such city"}'))
        shown = await api.post("/v1/tools/search/test", {"arguments": {}}, 200)
        assert shown["result"] == {"error": "no such city"}
        assert shown["outcome"] == "error"

    async def test_arguments_that_the_schema_refuses_are_not_sent(self, api: Api, test_tools: TestTools) -> None:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        hook = await test_tools.host(api, "search", {"ok": True}, parameters=parameters)
        problem = await api.post("/v1/tools/search/test", {"arguments": {}}, 422)
        assert "city" in problem["errors"][0]["msg"]
        assert hook.requests == []

    async def test_a_tool_that_is_not_there_is_not_found(self, api: Api) -> None:
        await api.post("/v1/tools/nope/test", {"arguments": {}}, 404)

    async def test_one_that_answers_later_is_told_to_wait(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", Reply(202, "soon"))
        shown = await api.post("/v1/tools/search/test", {"arguments": {}}, 200)
        assert (shown["outcome"], shown["result"], shown["cause"]) == ("waiting", None, None)
        assert (shown["response"]["status"], shown["response"]["body"]) == (202, "soon")
