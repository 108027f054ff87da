"""Each row of "What the loop does with each case" (contract, section 4), over HTTP with real webhooks."""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from tests.api import Api, Played, TestTools, call, calls, failing, schema, wanted
from tests.tools_app import Held, Reply

ONE_BY_ONE: dict[str, Any] = {"parallel_tools": 1, "empty_streak_after": 0}


def one_by_one(values: Sequence[Any]) -> dict[str, Any]:
    """A turn that calls `search` once for each value, to be executed in order."""
    return calls(*[wanted("search", {"n": value}) for value in values])


UNAVAILABLE = {"error": "The tool search is temporarily unavailable."}


class TestToolNames:
    async def test_an_unknown_tool_is_told_with_the_available_ones(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "alpha")
        await test_tools.host(api, "beta")
        played = await api.play(call("gamma"), "done")
        assert played.results == [{"error": "Tool 'gamma' does not exist. Available tools: alpha, beta."}]
        assert played.contents == ["""{"error":"Tool 'gamma' does not exist. Available tools: alpha, beta."}"""]
        assert played.outcomes == ["unknown"]
        assert played.ending == ("completed", "stop")

    async def test_without_tools_the_list_says_none(self, api: Api) -> None:
        played = await api.play(call("gamma"), "done")
        assert played.results == [{"error": "Tool 'gamma' does not exist. Available tools: none."}]

    async def test_a_blank_name_is_an_unknown_tool(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "alpha")
        played = await api.play(call(""), "done")
        assert played.results == [{"error": "Tool '' does not exist. Available tools: alpha."}]

    async def test_a_registered_tool_that_this_run_does_not_offer_is_unknown(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "alpha")
        beta = await test_tools.host(api, "beta")
        played = await api.play(call("beta"), "done", tools=["alpha"])
        assert played.results == [{"error": "Tool 'beta' does not exist. Available tools: alpha."}]
        assert beta.requests == []

    async def test_a_tool_of_another_workspace_is_unknown(self, api: Api, admin: Api, test_tools: TestTools) -> None:
        other = await admin.new_workspace()
        foreign = await test_tools.host(other, "search")
        played = await api.play(call("search"), "done")
        assert played.results == [{"error": "Tool 'search' does not exist. Available tools: none."}]
        assert foreign.requests == []

    async def test_the_siblings_of_an_unknown_call_still_run(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        played = await api.play(calls(wanted("nope"), wanted("search"), wanted("nada")), "done")
        assert played.outcomes == ["unknown", "ok", "unknown"]
        assert len(search.requests) == 1

    @pytest.mark.parametrize("name", ["OrderStatus", "orderStatus", "order-status", "ORDER_STATUS", "order_Status"])
    async def test_a_name_that_differs_in_case_dashes_or_camel_case_only_is_executed_as_that_tool(
        self, api: Api, test_tools: TestTools, name: str
    ) -> None:
        status = await test_tools.host(api, "order_status", {"status": "sent"})
        played = await api.play(call(name), "done")
        assert played.results == [{"status": "sent"}]
        assert status.requests[0].json["data"]["tool"] == "order_status"
        assert played.of("tool.invoked")[0]["tool"] == "order_status"

    async def test_a_name_that_is_like_two_tools_is_unknown(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "order_status")
        await test_tools.host(api, "orderStatus")
        played = await api.play(call("Order-Status"), "done")
        assert played.outcomes == ["unknown"]

    async def test_an_exact_name_wins_over_one_that_is_like_it(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "order_status", {"from": "snake"})
        await test_tools.host(api, "orderStatus", {"from": "camel"})
        played = await api.play(call("orderStatus"), "done")
        assert played.results == [{"from": "camel"}]

    async def test_a_name_that_differs_in_anything_else_is_unknown(self, api: Api, test_tools: TestTools) -> None:
        status = await test_tools.host(api, "order_status")
        names = ["order_state", "order status", "functions.order_status", "order_status()", "órder_status"]
        played = await api.play(calls(*[wanted(name) for name in names]), "done")
        assert played.outcomes == ["unknown"] * len(names)
        assert status.requests == []


class TestArguments:
    async def test_arguments_that_are_no_json_object_are_told_and_not_executed(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(api, "search")
        texts = ["{", '{"q": "cut', "q=1", "[]", "null", "42", '"x"', "[" * 20_000, '{"q": NaN}', '{"q": 1} and more']
        played = await api.play(calls(*[wanted("search", text) for text in texts]), "done")
        assert search.requests == []
        assert played.outcomes == ["invalid"] * len(texts)
        for result in played.results:
            assert list(result) == ["error"]
            assert "JSON object" in result["error"]
        assert played.ending == ("completed", "stop")

    async def test_arguments_that_break_the_schema_have_each_place_named(self, api: Api, test_tools: TestTools) -> None:
        filters = schema((), price={"type": "array", "items": {"type": "object", "properties": {"max": {"type": "number"}}}})
        parameters = schema(("city",), city="string", limit={"type": "integer", "minimum": 1}, filters=filters)
        search = await test_tools.host(api, "search", parameters=parameters)
        arguments = {"limit": 0, "filters": {"price": [{"max": 3}, {"max": "dear"}]}}
        played = await api.play(call("search", arguments), "done")
        error = played.results[0]["error"]
        assert "city" in error
        assert "required" in error
        assert "limit" in error
        assert "filters.price[1].max" in error
        assert "filters.price[0].max" not in error
        assert played.outcomes == ["invalid"]
        assert search.requests == []

    @pytest.mark.parametrize("text", ["", "   ", "\n\t"])
    async def test_blank_arguments_are_an_empty_object(self, api: Api, test_tools: TestTools, text: str) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        played = await api.play(call("search", text), "done")
        assert search.arguments == [{}]
        assert played.outcomes == ["ok"]

    async def test_blank_arguments_still_miss_what_is_required(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", parameters=schema(("city",), city="string"))
        played = await api.play(call("search", ""), "done")
        assert played.outcomes == ["invalid"]
        assert "city" in played.results[0]["error"]

    SHAPES = schema((), whole="integer", number="number", flag="boolean")

    async def test_a_string_that_is_exactly_the_wanted_number_or_boolean_is_taken_as_that(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(api, "search", parameters=self.SHAPES)
        given = [{"whole": "5"}, {"number": "5.5"}, {"number": "-1e2"}, {"flag": "true"}, {"flag": "false"}]
        await api.play(calls(*[wanted("search", arguments) for arguments in given]), "done", parallel_tools=1)
        taken = [{"whole": 5}, {"number": 5.5}, {"number": -100.0}, {"flag": True}, {"flag": False}]
        assert [json.dumps(arguments) for arguments in search.arguments] == [json.dumps(arguments) for arguments in taken]

    async def test_any_other_string_for_a_number_or_boolean_is_invalid(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", parameters=self.SHAPES)
        given = [
            {"whole": "five"}, {"whole": "5.5"}, {"whole": " 5"}, {"whole": ""}, {"number": "1,5"}, {"number": "0x10"},
            {"number": "NaN"}, {"flag": "True"}, {"flag": "1"}, {"flag": "yes"},
        ]  # fmt: skip
        played = await api.play(calls(*[wanted("search", arguments) for arguments in given]), "done")
        assert played.outcomes == ["invalid"] * len(given)
        for arguments, result in zip(given, played.results, strict=True):
            assert next(iter(arguments)) in result["error"]
        assert search.requests == []

    async def test_what_no_database_can_hold_is_mended_in_them(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search")
        texts = ['{"q\\u0000": "a\\u0000b"}', '{"q": "\\ud83d"}', '{"q": 1e999}', '{"q": ' + "9" * 400 + "}"]
        played = await api.play(calls(*[wanted("search", text) for text in texts]), "done", parallel_tools=1)
        assert search.arguments == [{"q": "ab"}, {"q": "\ufffd"}, {"q": None}, {"q": None}]
        assert played.ending == ("completed", "stop")

    async def test_a_number_in_a_string_stays_a_string_where_the_schema_wants_one(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(api, "search", parameters=schema((), zip="string"))
        await api.play(call("search", {"zip": "08001"}), "done")
        assert search.arguments == [{"zip": "08001"}]


class TestAnswers:
    @pytest.mark.parametrize("value", [{"a": {"b": [1, None, "é"]}}, [1, 2], [], 7, True, None, "text"])
    async def test_json_of_a_success_is_the_result(self, api: Api, test_tools: TestTools, value: Any) -> None:
        statuses = [200, 201, 203]
        json_type = {"content-type": "application/json"}
        await test_tools.host(api, "search", *[Reply(status, json.dumps(value), json_type) for status in statuses])
        played = await api.play(one_by_one(statuses), "done", **ONE_BY_ONE)
        assert played.results == [value] * 3
        assert [event["result"] for event in played.of("tool.invoked")] == [value] * 3
        assert [made["status"] for made in played.calls] == statuses

    @pytest.mark.parametrize("kind", ["text/plain", "text/markdown; charset=utf-8"])
    async def test_other_text_of_a_success_is_content(self, api: Api, test_tools: TestTools, kind: str) -> None:
        await test_tools.host(api, "search", Reply(200, "Sunny, 21 °C", {"content-type": kind}))
        played = await api.play(call("search"), "done")
        assert played.results == [{"content": "Sunny, 21 °C"}]
        assert played.outcomes == ["neutral"]

    @pytest.mark.parametrize("reply", [Reply(204), Reply(200), Reply(201, b"", {"content-type": "application/json"})])
    async def test_a_success_with_nothing_is_ok(self, api: Api, test_tools: TestTools, reply: Reply) -> None:
        await test_tools.host(api, "search", reply)
        played = await api.play(call("search"), "done")
        assert played.results == [{"ok": True}]

    async def test_what_no_database_or_json_can_hold_is_mended(self, api: Api, test_tools: TestTools) -> None:
        body = b'{"a\\u0000": "x\\u0000y", "half": "\\ud83d", "n": NaN, "big": 1e999}'
        await test_tools.host(api, "search", Reply(200, body, {"content-type": "application/json"}))
        played = await api.play(call("search"), "done")
        assert played.results == [{"a": "xy", "half": "\ufffd", "n": None, "big": None}]
        assert played.ending == ("completed", "stop")

    async def test_a_success_that_says_error_is_the_tools_own_error(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"error": "No such city."})
        played = await api.play(call("search"), "done")
        assert played.results == [{"error": "No such city."}]
        assert played.outcomes == ["error"]


LARAVEL = {"message": "The city field is required.", "errors": {"city": ["The city field is required."], "n": ["Too big."]}}


class TestRefusals:
    STATUSES = (400, 404, 409, 422)

    async def refused(self, api: Api, test_tools: TestTools, body: Any, **headers: str) -> Played:
        """One call for each of the statuses, all with this body."""
        replies = [Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})
                   for status in self.STATUSES]  # fmt: skip
        search = await test_tools.host(api, "search", *replies)
        played = await api.play(one_by_one(self.STATUSES), "done", **ONE_BY_ONE)
        assert len(search.requests) == len(self.STATUSES)
        assert played.outcomes == ["error"] * 4
        assert [made["status"] for made in played.calls] == list(self.STATUSES)
        return played

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"error": "No order 7."}, ["No order 7."]),
            ({"message": "No order 7."}, ["No order 7."]),
            ({"detail": "No order 7."}, ["No order 7."]),
            ({"errors": ["No order 7.", "No order 8."]}, ["No order 7.", "No order 8."]),
            ({"errors": {"order": ["is unknown"]}}, ["order", "is unknown"]),
            (LARAVEL, ["The city field is required.", "city", "n", "Too big."]),
            ({"error": {"message": "No order 7."}}, ["No order 7."]),
        ],
    )
    async def test_the_model_reads_what_the_application_said(
        self, api: Api, test_tools: TestTools, body: Any, said: list[str]
    ) -> None:
        played = await self.refused(api, test_tools, body)
        for result in played.results:
            assert list(result) == ["error"]
            for text in said:
                assert text in result["error"]

    async def test_a_plain_text_body_is_that_text(self, api: Api, test_tools: TestTools) -> None:
        played = await self.refused(api, test_tools, "Order 7 is closed.", content_type="text/plain")
        assert played.results == [{"error": "Order 7 is closed."}] * 4

    @pytest.mark.parametrize("body", [b"", {}, {"error": None}, {"code": 7}, [], {"error": "  "}])
    async def test_nothing_usable_is_told_with_the_status(self, api: Api, test_tools: TestTools, body: Any) -> None:
        played = await self.refused(api, test_tools, body)
        texts = [f"The tool search refused the call ({status})." for status in self.STATUSES]
        assert played.results == [{"error": text} for text in texts]

    @pytest.mark.parametrize("body", [{"error": "é" * 5_000}, "é" * 5_000, {"errors": {"a": ["é" * 5_000]}}])
    async def test_at_most_2000_characters_are_passed_on(self, api: Api, test_tools: TestTools, body: Any) -> None:
        await test_tools.host(api, "search", Reply(422, body))
        played = await api.play(call("search"), "done")
        text = played.results[0]["error"]
        assert 1_900 <= len(text) <= 2_000
        assert "é" * 1_900 in text

    async def test_the_run_goes_on_and_the_model_can_try_again(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", Reply(404, {"error": "No order 7."}), {"id": 8})
        played = await api.play(call("search", {"id": 7}), call("search", {"id": 8}), "Order 8.")
        assert played.outcomes == ["error", "neutral"]
        assert search.arguments == [{"id": 7}, {"id": 8}]
        assert played.run["output"] == "Order 8."


LEAKS = {"exception": "SQLSTATE[42S02] secret-table", "trace": ["/srv/app/Secret.php:7"]}


class TestWhatOnlyAPersonCanFix:
    def check(self, played: Played, status: int | None) -> None:
        assert played.results == [UNAVAILABLE]
        assert played.contents == [json.dumps(UNAVAILABLE, separators=(",", ":"))]
        assert played.outcomes == ["failed"]
        assert played.calls[0]["status"] == status
        assert played.calls[0]["cause"]
        assert played.of("tool.invoked")[0]["outcome"] == "failed"
        assert played.ending == ("completed", "stop")

    async def test_any_other_status(self, api: Api, test_tools: TestTools) -> None:
        statuses = [401, 402, 403, 405, 410, 413, 415, 418, 423, 429, 500, 501, 505]
        search = await test_tools.host(api, "search", *[Reply(status, LEAKS) for status in statuses])
        played = await api.play(one_by_one(statuses), "done", **ONE_BY_ONE)
        assert played.results == [UNAVAILABLE] * len(statuses)
        assert played.contents == [json.dumps(UNAVAILABLE, separators=(",", ":"))] * len(statuses)
        assert played.outcomes == ["failed"] * len(statuses)
        assert [made["status"] for made in played.calls] == statuses
        assert all("secret-table" in made["cause"] for made in played.calls)
        assert "ecret" not in played.shown()
        assert len(search.requests) == len(statuses)
        assert played.ending == ("completed", "stop")

    async def test_a_redirect_is_not_followed(self, api: Api, test_tools: TestTools) -> None:
        statuses = [301, 302, 303, 307, 308]
        target = test_tools.hook(f"{api.workspace_id}/target", {"items": [1]})
        replies = [Reply(status, b"", {"location": target.url}) for status in statuses]
        search = await test_tools.host(api, "search", *replies)
        played = await api.play(one_by_one(statuses), "done", **ONE_BY_ONE)
        assert played.results == [UNAVAILABLE] * len(statuses)
        assert [made["status"] for made in played.calls] == statuses
        assert target.requests == []
        assert len(search.requests) == len(statuses)

    @pytest.mark.parametrize("reply", [Reply(ending="hang"), Reply(200, "x" * 100, drip_seconds=0.05)])
    async def test_a_time_out(self, api: Api, test_tools: TestTools, reply: Reply) -> None:
        search = await test_tools.host(api, "search", reply, timeout_seconds=0.25)
        played = await api.play(call("search"), "done")
        assert played.results == [UNAVAILABLE]
        assert played.outcomes == ["failed"]
        assert "time" in played.calls[0]["cause"]
        assert 0.2 < played.calls[0]["seconds"] < 1.5
        assert len(search.requests) == 1

    @pytest.mark.parametrize("ending", ["close", "reset", "cut"])
    async def test_a_connection_that_breaks(self, api: Api, test_tools: TestTools, ending: Any) -> None:
        await test_tools.host(api, "search", Reply(200, "x" * 100, ending=ending))
        played = await api.play(call("search"), "done")
        assert played.results == [UNAVAILABLE]
        assert played.outcomes == ["failed"]
        assert played.calls[0]["cause"]

    async def test_a_port_where_nobody_listens(self, api: Api) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            await api.tool("search", f"http://127.0.0.1:{free.getsockname()[1]}/")
            played = await api.play(call("search"), "done")
        self.check(played, None)
        assert "127.0.0.1" not in played.shown()

    async def test_a_tls_failure(self, api: Api) -> None:
        async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
            await api.tool("search", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            self.check(await api.play(call("search"), "done"), None)

    @pytest.mark.parametrize("reply", [Reply(200, b"x" * (2 * 1024 * 1024 + 1)), Reply(200, ending="endless")])
    async def test_an_answer_over_two_mebibytes(self, api: Api, test_tools: TestTools, reply: Reply) -> None:
        search = await test_tools.host(api, "search", reply)
        played = await api.play(call("search"), "done")
        self.check(played, 200)
        assert "large" in played.calls[0]["cause"]
        assert len(search.requests) == 1

    async def test_an_answer_of_two_mebibytes_is_taken(self, api: Api, test_tools: TestTools) -> None:
        text = "x" * (2 * 1024 * 1024)
        await test_tools.host(api, "search", Reply(200, text, {"content-type": "text/plain"}))
        played = await api.play(call("search"), "done", persist=False)
        assert played.results == [{"content": text}]

    async def test_an_answer_that_nests_too_deep(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", Reply(200, "[" * 5_000 + "]" * 5_000))
        self.check(await api.play(call("search"), "done"), 200)

    async def test_one_failure_does_not_stop_its_siblings(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", Reply(500))
        good = await test_tools.host(api, "good", {"items": [1]})
        played = await api.play(calls(wanted("good"), wanted("search"), wanted("good")), "done")
        assert played.outcomes == ["ok", "failed", "ok"]
        assert len(good.requests) == 2


class TestCallsThatAreSentTwice:
    async def test_the_same_id_name_and_arguments_are_executed_once_and_both_answered(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(api, "search", {"items": [1]}, {"items": [2]})
        twice = wanted("search", {"q": "a"}, id="c1")
        played = await api.play(calls(twice, twice), "done")
        assert len(search.requests) == 1
        assert played.results == [{"items": [1]}, {"items": [1]}]
        first, second = (made["id"] for made in played.messages[1]["tool_calls"])
        assert first != second
        assert [message["tool_call_id"] for message in played.messages if message["role"] == "tool"] == [first, second]
        assert [event["call_id"] for event in played.of("tool.invoked")] == [first, second]

    async def test_the_same_arguments_in_another_order_are_the_same(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        texts = ['{"a": 1, "b": 2}', '{"b":2,"a":1}']
        played = await api.play(calls(*[wanted("search", text, id="c1") for text in texts]), "done")
        assert len(search.requests) == 1
        assert played.outcomes == ["ok", "ok"]

    async def test_the_same_id_with_other_arguments_is_another_call(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", lambda request: Reply(body=request.json["data"]["arguments"]))
        played = await api.play(calls(wanted("search", {"q": 1}, id="c1"), wanted("search", {"q": 2}, id="c1")), "done")
        assert len(search.requests) == 2
        assert played.results == [{"q": 1}, {"q": 2}]

    async def test_the_same_id_with_another_name_is_another_call(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "one", {"n": 1})
        await test_tools.host(api, "two", {"n": 2})
        played = await api.play(calls(wanted("one", id="c1"), wanted("two", id="c1")), "done")
        assert played.results == [{"n": 1}, {"n": 2}]

    @pytest.mark.parametrize("ids", [({"id": "c1"}, {"id": "c2"}), ({}, {})])
    async def test_equal_calls_under_different_ids_are_two(
        self, api: Api, test_tools: TestTools, ids: tuple[dict[str, str], dict[str, str]]
    ) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        await api.play(calls(wanted("search", **ids[0]), wanted("search", **ids[1])), "done")
        assert len(search.requests) == 2
        assert len({request.headers["webhook-id"] for request in search.requests}) == 2

    async def test_an_id_that_comes_again_in_a_later_turn_is_another_call(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"n": 1}, {"n": 2})
        same = calls(wanted("search", {"q": "a"}, id="c1"))
        played = await api.play(same, same, "done")
        assert played.results == [{"n": 1}, {"n": 2}]
        assert len({request.headers["webhook-id"] for request in search.requests}) == 2


class TestFinishReasonsWithCalls:
    @pytest.mark.parametrize(
        "reason", [None, "stop", "end_turn", "tool_calls", "function_call", "", "content_filter", "odd"]
    )
    async def test_calls_are_run_whatever_the_finish_reason(
        self, api: Api, test_tools: TestTools, reason: str | None
    ) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        played = await api.play(call("search", finish_reason=reason), "done")
        assert len(search.requests) == 1
        assert played.outcomes == ["ok"]
        assert played.ending == ("completed", "stop")

    async def test_cut_off_by_length_the_last_call_is_invalid_and_the_others_run(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        cut = calls(wanted("search", {"n": 1}), wanted("search", {"n": 2}), finish_reason="length")
        played = await api.play(cut, "done")
        assert search.arguments == [{"n": 1}]
        assert played.outcomes == ["ok", "invalid"]
        assert list(played.results[1]) == ["error"]
        assert played.ending == ("completed", "stop")

    async def test_a_single_cut_call_is_told_and_the_run_goes_on(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search")
        played = await api.play(call("search", '{"text": "lorem', finish_reason="length"), "done")
        assert search.requests == []
        assert played.outcomes == ["invalid"]
        assert played.run["output"] == "done"


class TestTheResultAsTheModelSeesIt:
    async def seen(self, api: Api, test_tools: TestTools, value: Any, **fields: Any) -> Played:
        await test_tools.host(api, "search", Reply(200, json.dumps(value), {"content-type": "application/json"}))
        return await api.play(call("search"), "done", **fields)

    async def test_a_string_is_shown_as_it_is(self, api: Api, test_tools: TestTools) -> None:
        played = await self.seen(api, test_tools, 'María said "no"\n')
        assert played.contents == ['María said "no"\n']
        assert played.messages[2]["content"] == 'María said "no"\n'

    async def test_anything_else_is_compact_json_with_unicode_unescaped(self, api: Api, test_tools: TestTools) -> None:
        played = await self.seen(api, test_tools, {"name": "María 🎉", "list": [1, 2.5, None, True]})
        assert played.contents == ['{"name":"María 🎉","list":[1,2.5,null,true]}']
        assert played.messages[2]["content"] == played.contents[0]

    async def test_what_fits_exactly_is_not_cut(self, api: Api, test_tools: TestTools) -> None:
        played = await self.seen(api, test_tools, "x" * 200, max_tool_result_chars=200)
        assert played.contents == ["x" * 200]
        assert played.of("tool.invoked")[0]["truncated"] is False

    async def test_what_is_too_long_is_cut_to_so_many_characters_and_an_ellipsis(
        self, api: Api, test_tools: TestTools
    ) -> None:
        played = await self.seen(api, test_tools, "🎉" * 201, max_tool_result_chars=200)
        assert played.contents == ["🎉" * 200 + "…"]
        assert played.messages[2]["content"] == played.contents[0]
        invoked = played.of("tool.invoked")[0]
        assert invoked["truncated"] is True
        assert invoked["result"] == "🎉" * 201

    async def test_16000_characters_is_the_default(self, api: Api, test_tools: TestTools) -> None:
        played = await self.seen(api, test_tools, "x" * 16_001)
        assert played.contents == ["x" * 16_000 + "…"]

    @pytest.mark.parametrize(("items", "outcome"), [([], "empty"), ([1], "ok")])
    async def test_it_is_judged_before_it_is_cut(
        self, api: Api, test_tools: TestTools, items: list[int], outcome: str
    ) -> None:
        played = await self.seen(api, test_tools, {"about": "x" * 500, "items": items}, max_tool_result_chars=100)
        assert played.outcomes == [outcome]
        assert "items" not in played.contents[0]


class TestProviderTrouble:
    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
    async def test_trouble_that_may_pass_is_tried_again(self, api: Api, status: int) -> None:
        played = await api.play(failing(status, "slow down"), "done")
        assert played.ending == ("completed", "stop")
        assert [made["attempt"] for made in played.model_calls] == [1, 2]
        assert played.model_calls[0]["error"]
        assert played.model_calls[1]["error"] is None
        assert played.types.count("iteration.started") == 1
        assert "message.discarded" not in played.types

    async def test_four_attempts_are_made_then_the_provider_is_unavailable(self, api: Api) -> None:
        played = await api.play(*[failing(503)] * 4, "too late")
        assert played.ending == ("failed", "error")
        assert played.run["error"]["code"] == "provider_unavailable"
        assert len(played.model_calls) == 4

    async def test_failover_asks_the_next_model_of_the_list(self, api: Api) -> None:
        played = await api.play(*[failing(503)] * 4, "from the second", model=["scripted/one", "scripted/two"])
        assert played.run["output"] == "from the second"
        assert [made["model"] for made in played.model_calls] == ["scripted/one"] * 4 + ["scripted/two"]
        assert played.types.count("iteration.started") == 1

    async def test_used_up_credits_go_to_the_next_model(self, api: Api) -> None:
        turns = [failing(402, "Insufficient credits")] * 4
        played = await api.play(*turns, "from the second", model=["scripted/one", "scripted/two"])
        assert played.ending == ("completed", "stop")
        assert played.model_calls[-1]["model"] == "scripted/two"

    async def test_when_all_models_fail_the_provider_is_unavailable(self, api: Api) -> None:
        played = await api.play(*[failing(500)] * 8, "too late", model=["scripted/one", "scripted/two"])
        assert played.run["error"]["code"] == "provider_unavailable"
        assert len(played.model_calls) == 8

    @pytest.mark.parametrize("status", [400, 401, 404])
    async def test_a_refusal_is_no_reason_for_failover(self, api: Api, status: int) -> None:
        played = await api.play(failing(status), "from the second", model=["scripted/one", "scripted/two"])
        assert played.run["status"] == "failed"
        assert len(played.model_calls) == 1

    async def test_after_a_delta_the_call_is_made_anew_and_the_client_told_to_drop_what_it_has(self, api: Api) -> None:
        played = await api.play(failing(500, text="Hello wor", chunk_chars=3), {"text": "Good day", "chunk_chars": 4})
        assert played.run["output"] == "Good day"
        shown = [event for event in played.events if event.type.startswith("message.")]
        assert [event.type for event in shown] == (
            ["message.delta"] * 3 + ["message.discarded"] + ["message.delta"] * 2 + ["message.completed"]
        )
        message_id = shown[-1].data["message"]["id"]
        assert {event.data["message_id"] for event in shown[:-1]} == {message_id}
        assert [message["content"] for message in played.messages] == ["Hello", "Good day"]
        assert played.types.count("iteration.started") == 1
        assert played.types.count("iteration.completed") == 1

    async def test_after_a_delta_there_is_no_failover(self, api: Api) -> None:
        broken = [failing(500, text="part")] * 4
        played = await api.play(*broken, "from the second", model=["scripted/one", "scripted/two"])
        assert played.run["error"]["code"] == "provider_unavailable"
        assert {made["model"] for made in played.model_calls} == {"scripted/one"}

    @pytest.mark.parametrize(
        ("status", "code"),
        [(400, "provider_rejected"), (404, "provider_rejected"), (422, "provider_rejected"), (401, "provider_auth"),
         (403, "provider_auth")],
    )  # fmt: skip
    async def test_a_refusal_is_final(self, api: Api, status: int, code: str) -> None:
        played = await api.play(failing(status, "no"), "too late")
        assert played.ending == ("failed", "error")
        assert played.run["error"]["code"] == code
        assert len(played.model_calls) == 1

    @pytest.mark.parametrize(
        ("status", "message"),
        [(400, "This model's maximum context length is 8192 tokens, however you requested 9000 tokens."),
         (413, "Request too large"), (400, "prompt is too long: 210000 tokens > 200000 maximum")],
    )  # fmt: skip
    async def test_a_context_overflow_is_told_as_that(self, api: Api, status: int, message: str) -> None:
        played = await api.play(failing(status, message), failing(status, message), "too late")
        assert played.run["error"]["code"] == "context_overflow"
        assert len(played.model_calls) <= 2

    async def test_trouble_in_a_later_iteration_keeps_what_came_before(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"items": [1]})
        played = await api.play(call("search"), failing(429), failing(429), "done")
        assert len(search.requests) == 1
        assert played.run["output"] == "done"
        assert [len(iteration["model_calls"]) for iteration in played.trace] == [1, 3]


class TestOpenCallsOfARunThatIsEnded:
    async def started(self, api: Api, session: str, *script: Any, **fields: Any) -> dict[str, Any]:
        run: dict[str, Any] = await api.run(session, *script, background=True, status=202, **fields)
        return run

    def check(self, played: Played) -> None:
        assert played.outcomes == ["ok", "cancelled", "cancelled"]
        assert [message["role"] for message in played.messages] == ["user", "assistant", "tool", "tool", "tool"]
        ids = [made["id"] for made in played.messages[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in played.messages[2:]] == ids
        assert all(json.loads(message["content"])["error"] for message in played.messages[3:])
        invoked = {event["call_id"]: event for event in played.of("tool.invoked")}
        assert [invoked[call_id]["outcome"] for call_id in ids] == ["ok", "cancelled", "cancelled"]
        positions = [message["position"] for message in played.messages]
        assert positions == list(range(positions[0], positions[0] + 5))

    SCRIPT = calls(wanted("quick"), wanted("slow", {"n": 1}), wanted("slow", {"n": 2}))

    async def test_cancel(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "quick", {"items": [1]})
        slow = await test_tools.host(api, "slow", Reply(ending="hang"))
        session = await api.new_session()
        run = await self.started(api, session, self.SCRIPT, "never")
        await slow.received(2)
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "tool.invoked":
                break
        gone = asyncio.create_task(slow.abandoned(2))
        await asyncio.sleep(0)
        ended = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        assert (ended["status"], ended["finish_reason"]) == ("cancelled", "cancelled")
        await gone
        self.check(await api.played(ended))
        again = await api.run(session, "Still here.")
        assert again["output"] == "Still here."

    async def test_deadline(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "quick", {"items": [1]})
        await test_tools.host(api, "slow", Reply(ending="hang"))
        session = await api.new_session()
        played = await api.play(self.SCRIPT, "never", session=session, deadline_seconds=1.0)
        assert played.ending == ("incomplete", "deadline")
        self.check(played)
        assert (await api.run(session, "Still here."))["status"] == "completed"

    async def test_interrupt(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "quick", {"items": [1]})
        slow = await test_tools.host(api, "slow", Reply(ending="hang"))
        session = await api.new_session()
        run = await self.started(api, session, self.SCRIPT, "never")
        await slow.received(2)
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "tool.invoked":
                break
        second = await api.run(session, "Instead.", input="Stop that", on_conflict="interrupt")
        assert second["output"] == "Instead."
        self.check(await api.played(await api.get(f"/v1/runs/{run['id']}")))
        contents = [(message["role"], message["content"]) for message in await api.messages(session)]
        assert contents[-2:] == [("user", "Stop that"), ("assistant", "Instead.")]

    async def test_a_late_answer_of_an_abandoned_call_changes_nothing(self, api: Api, test_tools: TestTools) -> None:
        late = Held(body={"items": ["late"]})
        slow = await test_tools.host(api, "slow", late)
        session = await api.new_session()
        run = await self.started(api, session, call("slow"), "never")
        await slow.received()
        ended = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        late.gate.set()
        played = await api.played(ended)
        assert played.outcomes == ["cancelled"]
        assert await api.get(f"/v1/runs/{run['id']}") == ended
        assert "late" not in played.shown()
