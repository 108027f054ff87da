"""The conventions of every route (contract, section 1): what the doors refuse, how, and how lists behave."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from app import request_log
from app.auth import repository as keys
from tests.api import TENANT, Api, schema

UNKNOWN = "01a22f37597e7dfcb8b2fa9a6f564258"
SESSION = {"tenant": TENANT, "model": "scripted/test"}
RFC_3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem document of a refusal, judged as such."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    for name in ("type", "title", "detail", "code"):
        assert isinstance(document[name], str), name
        assert document[name], name
    if code is not None:
        assert document["code"] == code
    if status == 422:
        assert document["errors"]
        for error in document["errors"]:
            assert set(error) == {"loc", "msg"}
            assert isinstance(error["loc"], list)
    return document


async def send(
    api: Api, content: bytes, path: str = "/v1/sessions", content_type: str | None = "application/json"
) -> httpx.Response:
    """A POST of exactly these bytes."""
    headers = api.headers() if content_type is None else api.headers(**{"Content-Type": content_type})
    return await api.http.post(path, content=content, headers=headers)


def with_metadata(text: str) -> bytes:
    """The body of a session whose metadata is this JSON text."""
    return b'{"tenant": {"type": "organization", "id": "42"}, "metadata": %s}' % text.encode("utf-8", "surrogatepass")


class TestBodies:
    @pytest.mark.parametrize("content", [b"{", b"nope", b'{"a": 1,}', b"{'a': 1}", b"\xff\xfe", b'{"tenant": }', b"{} {}"])
    async def test_what_is_no_json_is_a_400(self, api: Api, content: bytes) -> None:
        problem(await send(api, content), 400, "invalid_json")

    @pytest.mark.parametrize("content", [b"\xef\xbb\xbf{}", '{"a": "b"}'.encode("utf-16")])
    async def test_another_encoding_than_plain_utf_8_is_no_json(self, api: Api, content: bytes) -> None:
        problem(await send(api, content), 400, "invalid_json")

    @pytest.mark.parametrize(
        "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
    )
    async def test_another_content_type_is_a_415(self, api: Api, content_type: str | None) -> None:
        problem(await send(api, json.dumps(SESSION).encode(), content_type=content_type), 415, "unsupported_media_type")

    @pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
    async def test_json_with_parameters_or_in_capitals_is_taken(self, api: Api, content_type: str) -> None:
        assert (await send(api, json.dumps(SESSION).encode(), content_type=content_type)).status_code == 201

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
    async def test_a_number_that_is_not_finite_is_refused(self, api: Api, number: str) -> None:
        problem(await send(api, with_metadata(f'{{"x": [{number}]}}')), 422)

    @pytest.mark.parametrize("text", [r'"a\ud83d"', r'"\udc00b"', '"\ud83d"', r'"\ud83d x \ude00"'])
    async def test_half_a_surrogate_pair_is_refused(self, api: Api, text: str) -> None:
        problem(await send(api, with_metadata(f'{{"x": {text}}}')), 422)
        problem(await send(api, with_metadata(f"{{{text}: 1}}")), 422)

    @pytest.mark.parametrize("metadata", [r'{"x": "a\u0000b"}', r'{"a\u0000b": 1}', r'{"x": [{"y": ["\u0000"]}]}'])
    async def test_a_nul_is_refused_in_values_and_keys(self, api: Api, metadata: str) -> None:
        problem(await send(api, with_metadata(metadata)), 422)

    async def test_a_whole_surrogate_pair_is_a_character_like_any_other(self, api: Api) -> None:
        response = await send(api, with_metadata(r'{"x": "\ud83d\ude00"}'))
        assert response.json()["metadata"] == {"x": "😀"}

    async def test_sixty_four_levels_are_taken_and_sixty_five_refused(self, api: Api) -> None:
        def nested(levels: int) -> bytes:
            return with_metadata('{"x":' * (levels - 1) + "1" + "}" * (levels - 1))

        assert (await send(api, nested(64))).status_code == 201
        problem(await send(api, nested(65)), 422)

    @pytest.mark.parametrize("levels", [1_000, 1_100, 100_000])
    async def test_a_very_deep_body_is_refused_like_one_a_little_too_deep(self, api: Api, levels: int) -> None:
        problem(await send(api, with_metadata('{"x": ' + "[" * levels + "]" * levels + "}")), 422)

    async def test_a_number_of_five_thousand_digits_hurts_nobody(self, api: Api) -> None:
        response = await send(api, with_metadata(f'{{"x": {"9" * 5000}}}'))
        problem(response, response.status_code)
        assert response.status_code in (400, 422)

    @pytest.mark.parametrize("content", [b"[]", b"1", b'"text"', b"null", b"true"])
    async def test_json_that_is_no_object_is_a_422(self, api: Api, content: bytes) -> None:
        problem(await send(api, content), 422)

    async def test_no_body_is_an_empty_object(self, api: Api) -> None:
        document = problem(await send(api, b"", content_type=None), 422)
        assert ["body", "tenant"] in [error["loc"] for error in document["errors"]]

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/sessions", {**SESSION, "surprise": 1}),
            ("/v1/sessions", {**SESSION, "config": {"surprise": 1}}),
            ("/v1/sessions", {"tenant": {**TENANT, "surprise": 1}}),
            ("/v1/runs", {"tenant": TENANT, "input": "Hello", "model": "scripted/test", "surprise": 1}),
        ],
    )
    async def test_an_unknown_field_is_refused_and_named(self, api: Api, path: str, body: dict[str, Any]) -> None:
        document = problem(await api.call("POST", path, body), 422)
        assert any(error["loc"][-1] == "surprise" for error in document["errors"])

    async def test_nothing_is_silently_converted(self, api: Api) -> None:
        session_id = await api.new_session()
        for field, value in (("max_iterations", "3"), ("persist", "yes"), ("stream", 1), ("max_iterations", 2.5)):
            body = {"input": "Hello", "script": ["Hi."], field: value}
            document = problem(await api.call("POST", f"/v1/sessions/{session_id}/runs", body), 422)
            assert document["errors"][0]["loc"] == ["body", field]


class TestSizes:
    async def test_four_mib_are_taken(self, api: Api) -> None:
        frame = len(with_metadata('{"x": ""}'))
        content = with_metadata(f'{{"x": "{"a" * (4 * 1024 * 1024 - frame)}"}}')
        assert len(content) == 4 * 1024 * 1024
        assert (await send(api, content)).status_code == 201

    async def test_a_byte_more_is_a_413(self, api: Api) -> None:
        problem(await send(api, b" " * (4 * 1024 * 1024 + 1)), 413, "too_large")

    async def test_a_byte_more_is_a_413_without_a_content_length_too(self, api: Api) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield b" " * (64 * 1024)
            yield b" "

        headers = api.headers(**{"Content-Type": "application/json"})
        response = await api.http.post("/v1/sessions", content=chunks(), headers=headers)
        assert "content-length" not in response.request.headers
        problem(response, 413, "too_large")

    async def test_a_content_length_that_is_too_large_is_refused_before_the_body_comes(self, api: Api) -> None:
        host, port = api.http.base_url.host, api.http.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        head = (
            "POST /v1/sessions HTTP/1.1\r\nHost: rondo\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {api.key}\r\nContent-Length: 5000000\r\n\r\n"
        )
        writer.write(head.encode())
        line = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await writer.wait_closed()
        assert line.split()[1] == b"413"


class TestOrderOfJudgement:
    async def test_a_missing_key_comes_before_everything(self, http: httpx.AsyncClient) -> None:
        for method, path in (
            ("POST", "/v1/sessions"),
            ("GET", "/v1/runs?limit=0"),
            ("PATCH", f"/v1/sessions/ses_{UNKNOWN}"),
        ):
            problem(await http.request(method, path, content=b"{"), 401, "unauthenticated")

    @pytest.mark.parametrize("content", [b"{", b'{"surprise": 1}', b'{"x": NaN}', b""])
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PATCH", "/v1/sessions/ses_"), ("POST", "/v1/sessions/ses_{}/runs"), ("POST", "/v1/sessions/ses_{}/messages"),
            ("POST", "/v1/sessions/ses_{}/tokens"), ("POST", "/v1/runs/run_{}/approvals"),
            ("POST", "/v1/runs/run_{}/tool-results"), ("POST", "/v1/tools/none/test"),
        ],
    )  # fmt: skip
    async def test_what_the_path_names_is_looked_up_before_the_body_is_judged(
        self, api: Api, method: str, path: str, content: bytes
    ) -> None:
        headers = api.headers(**{"Content-Type": "application/json"})
        problem(await api.http.request(method, path.format(UNKNOWN), content=content, headers=headers), 404, "not_found")

    async def test_a_body_that_is_too_large_for_nothing_is_a_404(self, api: Api) -> None:
        response = await send(api, b" " * (4 * 1024 * 1024 + 1), f"/v1/sessions/ses_{UNKNOWN}/runs")
        problem(response, 404)


class TestIds:
    @pytest.mark.parametrize(
        "wrong",
        [
            "x", "ses_", "ses_1", f"run_{UNKNOWN}", f"ses_{UNKNOWN.upper()}", f"ses_{UNKNOWN}0", f"{UNKNOWN}", "ses_%00",
            f"ses_{UNKNOWN}%00", "%F0%9F%98%80", "ses_" + "f" * 32, "null", "%27%20OR%201=1--", "a" * 3000, "..%2f..", "%ff",
        ],
    )  # fmt: skip
    async def test_a_malformed_id_is_a_404(self, api: Api, wrong: str) -> None:
        for method, path in (
            ("GET", "/v1/sessions/{}"), ("PATCH", "/v1/sessions/{}"), ("DELETE", "/v1/sessions/{}"),
            ("GET", "/v1/sessions/{}/messages"), ("POST", "/v1/sessions/{}/runs"), ("GET", "/v1/sessions/{}/prompt"),
        ):  # fmt: skip
            problem(await api.call(method, path.format(wrong)), 404, "not_found")

    @pytest.mark.parametrize("wrong", ["x", "run_", f"ses_{UNKNOWN}", "run_%00", "%00", f"run_{UNKNOWN}", "%ff"])
    async def test_a_malformed_or_unknown_run_is_a_404(self, api: Api, wrong: str) -> None:
        for method, path in (
            ("GET", "/v1/runs/{}"), ("GET", "/v1/runs/{}/events"), ("GET", "/v1/runs/{}/trace"),
            ("GET", "/v1/runs/{}/script"), ("POST", "/v1/runs/{}/cancel"),
        ):  # fmt: skip
            problem(await api.call(method, path.format(wrong)), 404, "not_found")

    @pytest.mark.parametrize("wrong", ["x", "key_", "%00", "key_%00", f"key_{UNKNOWN}", "%ff"])
    async def test_a_malformed_or_unknown_key_is_a_404(self, admin: Api, wrong: str) -> None:
        problem(await admin.call("DELETE", f"/v1/keys/{wrong}"), 404, "not_found")

    @pytest.mark.parametrize("wrong", ["x", "%00", "a%00b", "%F0%9F%98%80", "a" * 300, "%ff"])
    async def test_a_name_that_no_tool_or_provider_can_have_is_a_404(self, api: Api, wrong: str) -> None:
        for method, path in (
            ("GET", "/v1/tools/{}"), ("DELETE", "/v1/tools/{}"), ("POST", "/v1/tools/{}/test"),
            ("POST", "/v1/tools/{}/rotate-secret"), ("DELETE", "/v1/providers/{}"),
        ):  # fmt: skip
            problem(await api.call(method, path.format(wrong)), 404, "not_found")

    async def test_a_foreign_id_in_a_body_is_a_404(self, api: Api, admin: Api) -> None:
        problem(await api.call("POST", "/v1/sessions", {**SESSION, "agent_id": f"agt_{UNKNOWN}"}), 404)
        problem(await api.call("POST", "/v1/sessions", {**SESSION, "agent_id": "junk"}), 404)
        for workspace_id in (f"wsp_{UNKNOWN}", "junk", "é"):
            body = {"workspace_id": workspace_id, "kind": "service", "name": "x"}
            problem(await admin.call("POST", "/v1/keys", body), 404)

    async def test_ids_are_a_prefix_and_a_uuid_of_version_7(self, api: Api, admin: Api) -> None:
        played = await api.play({"text": "Looking.", "tool_calls": [{"name": "none"}]}, "Done.")
        key = await admin.post("/v1/keys", {"workspace_id": api.workspace_id, "kind": "service", "name": "x"})
        found = [
            (played.run["session_id"], "ses_"), (played.run["id"], "run_"), (key["id"], "key_"),
            *((message["id"], "msg_") for message in played.messages),
            *((call["call_id"], "call_") for call in played.calls),
        ]  # fmt: skip
        for value, prefix in found:
            assert re.fullmatch(prefix + r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", value), value


class TestReferences:
    async def made(self, api: Api, **axes: Any) -> httpx.Response:
        return await api.call("POST", "/v1/sessions", {"tenant": TENANT, **axes})

    async def test_an_integer_id_is_kept_as_a_string(self, api: Api) -> None:
        made = (await self.made(api, tenant={"type": "organization", "id": 42}, member={"type": "user", "id": 0})).json()
        assert made["tenant"] == {"type": "organization", "id": "42"}
        assert made["member"] == {"type": "user", "id": "0"}
        found = await api.get("/v1/sessions?tenant=organization:42")
        assert [item["id"] for item in found["data"]] == [made["id"]]

    @pytest.mark.parametrize("wrong", [True, 1.5, None, "", "a" * 256, ["1"], {"x": 1}])
    async def test_an_id_is_a_string_of_1_to_255_or_an_integer(self, api: Api, wrong: Any) -> None:
        document = problem(await self.made(api, tenant={"type": "organization", "id": wrong}), 422)
        assert document["errors"][0]["loc"][:3] == ["body", "tenant", "id"]

    @pytest.mark.parametrize("kept", ["a" * 255, "😀" * 255, "42:7", "o'neil", 'say "hi"', "everyone", "null", "a b"])
    async def test_an_id_may_be_any_text(self, api: Api, kept: str) -> None:
        made = await self.made(api, tenant={"type": "organization", "id": kept})
        assert made.json()["tenant"]["id"] == kept

    @pytest.mark.parametrize("kept", ["a", "x" * 64, "組織", "organización", "مؤسسة", "😀", "Property Listing", "a-b_c.d/e"])
    async def test_a_type_is_a_word_of_any_script(self, api: Api, kept: str) -> None:
        made = (await self.made(api, tenant={"type": kept, "id": "1"})).json()
        assert made["tenant"] == {"type": kept, "id": "1"}
        found = await api.http.get("/v1/sessions", params={"tenant": f"{kept}:1"}, headers=api.headers())
        assert [item["id"] for item in found.json()["data"]] == [made["id"]]

    @pytest.mark.parametrize(
        "wrong", ["", "x" * 65, "a:b", 'a"b', "a'b", "a\nb", "a\tb", "a\x7fb", "a\x85b", "everyone", 5, None]
    )
    async def test_a_type_has_no_colons_quotes_or_control_characters(self, api: Api, wrong: Any) -> None:
        for axis in ("tenant", "subject", "member"):
            document = problem(await self.made(api, **{axis: {"type": wrong, "id": "1"}}), 422)
            assert document["errors"][0]["loc"][:3] == ["body", axis, "type"]

    @pytest.mark.parametrize(
        "axes",
        [
            {"subject": {"type": "organization", "id": "7"}},
            {"member": {"type": "organization", "id": "42"}},
            {"subject": {"type": "user", "id": "1"}, "member": {"type": "user", "id": "2"}},
        ],
    )
    async def test_two_axes_of_one_type_conflict(self, api: Api, axes: dict[str, Any]) -> None:
        problem(await self.made(api, **axes), 422, "alias_conflict")
        body = {"tenant": TENANT, **axes, "model": "scripted/test", "input": "Hello", "script": ["Hi."]}
        problem(await api.call("POST", "/v1/runs", body), 422, "alias_conflict")

    @pytest.mark.parametrize("wrong", ["organization", ":42", "organization:", "null", "", "everyone:1", "a%00:1", "a:%00"])
    async def test_a_reference_in_a_query_is_judged_alike(self, api: Api, wrong: str) -> None:
        for path in ("/v1/sessions", "/v1/runs"):
            problem(await api.call("GET", f"{path}?tenant={wrong}"), 422)

    async def test_the_id_begins_after_the_first_colon(self, api: Api) -> None:
        made = (await self.made(api, tenant={"type": "organization", "id": "a:b:c"})).json()
        found = await api.get("/v1/sessions?tenant=organization:a:b:c")
        assert [item["id"] for item in found["data"]] == [made["id"]]


async def pages(api: Api, path: str, limit: int) -> list[list[dict[str, Any]]]:
    """Every page of a list."""
    found, more = [], ""
    while True:
        page = await api.get(f"{path}?limit={limit}{more}")
        assert set(page) == {"data", "next"}
        assert len(page["data"]) <= limit
        found.append(page["data"])
        if page["next"] is None:
            return found
        assert len(page["data"]) == limit
        more = f"&after={page['next']}"


class TestLists:
    @pytest.mark.parametrize("path", ["/v1/sessions", "/v1/runs", "/v1/tools", "/v1/providers"])
    async def test_an_empty_list_is_one(self, api: Api, path: str) -> None:
        assert await api.get(path) == {"data": [], "next": None}

    @pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=-1", "limit=x", "limit=", "limit=1.5", "limit=1e2"])
    async def test_a_limit_out_of_bounds_is_refused(self, api: Api, query: str) -> None:
        for path in ("/v1/sessions", "/v1/runs", "/v1/tools", "/v1/providers"):
            document = problem(await api.call("GET", f"{path}?{query}"), 422)
            assert document["errors"][0]["loc"] == ["query", "limit"]

    @pytest.mark.parametrize("cursor", ["x", "%00", "AA", "AAAA", "Zm9v", "!!!!", "%F0%9F%98%80", "a" * 201, "MA", "LTE"])
    async def test_what_is_no_cursor_is_refused(self, api: Api, cursor: str) -> None:
        session_id = await api.new_session()
        for path in ("/v1/sessions", "/v1/runs", "/v1/tools", f"/v1/sessions/{session_id}/messages"):
            document = problem(await api.call("GET", f"{path}?after={cursor}"), 422)
            assert document["errors"][0]["loc"] == ["query", "after"]

    async def test_a_cursor_of_another_list_is_refused(self, api: Api) -> None:
        session_id = await api.new_session()
        await api.new_session()
        messages = [{"role": "user", "content": f"{number}"} for number in range(3)]
        await api.post(f"/v1/sessions/{session_id}/messages", {"messages": messages})
        cursor = (await api.get("/v1/sessions?limit=1"))["next"]
        other = (await api.get(f"/v1/sessions/{session_id}/messages?limit=1"))["next"]
        problem(await api.call("GET", f"/v1/sessions/{session_id}/messages?after={cursor}"), 422)
        problem(await api.call("GET", f"/v1/runs?after={cursor}"), 422)
        problem(await api.call("GET", f"/v1/sessions?after={other}"), 422)

    async def test_fifty_are_given_when_nothing_is_said_and_two_hundred_at_most(self, api: Api) -> None:
        session_id = await api.new_session()
        messages = [{"role": "user", "content": f"{number}"} for number in range(250)]
        await api.post(f"/v1/sessions/{session_id}/messages", {"messages": messages})
        assert len((await api.get(f"/v1/sessions/{session_id}/messages"))["data"]) == 50
        assert len((await api.get(f"/v1/sessions/{session_id}/messages?limit=200"))["data"]) == 200
        assert [len(page) for page in await pages(api, f"/v1/sessions/{session_id}/messages", 200)] == [200, 50]

    async def test_sessions_come_newest_first(self, api: Api) -> None:
        made = [await api.new_session() for _ in range(5)]
        found = await pages(api, "/v1/sessions", 2)
        assert [item["id"] for page in found for item in page] == made[::-1]
        assert [len(page) for page in found] == [2, 2, 1]

    async def test_a_page_that_ends_with_the_last_row_has_no_next(self, api: Api) -> None:
        for _ in range(4):
            await api.new_session()
        assert [len(page) for page in await pages(api, "/v1/sessions", 2)] == [2, 2]

    async def test_runs_come_newest_first_and_messages_oldest_first(self, api: Api) -> None:
        session_id = await api.new_session()
        runs = [(await api.run(session_id, f"Answer {number}."))["id"] for number in range(3)]
        assert [item["id"] for page in await pages(api, "/v1/runs", 1) for item in page] == runs[::-1]
        messages = [item for page in await pages(api, f"/v1/sessions/{session_id}/messages", 2) for item in page]
        assert [item["position"] for item in messages] == [1, 2, 3, 4, 5, 6]
        assert [item["run_id"] for item in messages] == [run_id for run_id in runs for _ in range(2)]

    async def test_the_trace_comes_oldest_first(self, api: Api) -> None:
        turn = {"tool_calls": [{"name": "none"}]}
        played = await api.play(turn, turn, "Done.", empty_streak_after=0)
        assert [item["iteration"] for item in played.trace] == [1, 2, 3]

    async def test_tools_and_providers_are_paged_alike(self, api: Api, test_tools: Any) -> None:
        for name in ("alpha", "Beta", "gamma-1", "a_b", "z"):
            await test_tools.host(api, name)
            body = {"kind": "openai", "base_url": f"http://127.0.0.1:9/{name}", "api_key": "k"}
            await api.call("PUT", f"/v1/providers/{name.lower()}", body)
        for path, names in (
            ("/v1/tools", {"alpha", "Beta", "gamma-1", "a_b", "z"}),
            ("/v1/providers", {"alpha", "beta", "gamma-1", "a_b", "z"}),
        ):
            found = [item["name"] for page in await pages(api, path, 2) for item in page]
            assert sorted(found) == sorted(names)

    async def test_the_cursor_stays_right_while_rows_are_added(self, api: Api) -> None:
        made = [await api.new_session() for _ in range(4)]
        first = await api.get("/v1/sessions?limit=2")
        later = [await api.new_session() for _ in range(3)]
        second = await api.get(f"/v1/sessions?limit=2&after={first['next']}")
        assert [item["id"] for item in first["data"] + second["data"]] == made[::-1]
        assert second["next"] is None
        assert [item["id"] for item in (await api.get("/v1/sessions?limit=3"))["data"]] == later[::-1]

    async def test_the_cursor_of_messages_stays_right_while_rows_are_added(self, api: Api) -> None:
        session_id = await api.new_session()
        path = f"/v1/sessions/{session_id}/messages"
        await api.post(path, {"messages": [{"role": "user", "content": f"{number}"} for number in range(3)]})
        first = await api.get(f"{path}?limit=2")
        await api.post(path, {"messages": [{"role": "assistant", "content": "3"}]})
        second = await api.get(f"{path}?limit=2&after={first['next']}")
        assert [item["content"] for item in first["data"] + second["data"]] == ["0", "1", "2", "3"]

    async def test_the_cursor_outlives_the_row_it_was_made_of(self, api: Api) -> None:
        made = [await api.new_session() for _ in range(4)]
        first = await api.get("/v1/sessions?limit=2")
        await api.call("DELETE", f"/v1/sessions/{made[2]}")
        second = await api.get(f"/v1/sessions?limit=2&after={first['next']}")
        assert [item["id"] for item in second["data"]] == made[1::-1]

    async def test_a_cursor_is_opaque(self, api: Api) -> None:
        made = [await api.new_session() for _ in range(2)]
        cursor = (await api.get("/v1/sessions?limit=1"))["next"]
        assert not any(session_id in cursor for session_id in made)
        assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)

    async def test_junk_in_a_filter_is_never_an_internal_error(self, api: Api) -> None:
        for query in ("status=%00", "agent_id=%00", "status=nonsense", "agent_id=%F0%9F%98%80", "tenant=a:b%00"):
            response = await api.call("GET", f"/v1/runs?{query}")
            assert response.status_code in (200, 404, 422), (query, response.text)
            assert response.status_code != 200 or response.json()["data"] == []
        for query in ("agent_id=%00", "subject=a:%00", "member=%00"):
            response = await api.call("GET", f"/v1/sessions?{query}")
            assert response.status_code in (200, 404, 422), (query, response.text)


class TestAnswers:
    async def test_times_are_rfc_3339_in_utc(self, api: Api, admin: Api) -> None:
        played = await api.play("Hi.")
        session = await api.get(f"/v1/sessions/{played.run['session_id']}")
        times = [played.run[name] for name in ("created_at", "started_at", "finished_at")]
        times += [session["created_at"], session["updated_at"], *(message["created_at"] for message in played.messages)]
        times += [event.data["at"] for event in played.events]
        times += [item["created_at"] for item in (await admin.get("/v1/keys?limit=1"))["data"]]
        assert [time for time in times if not RFC_3339_UTC.fullmatch(time)] == []
        assert times[0] <= times[1] <= times[2]

    async def test_status_codes_are_those_of_what_happened(self, api: Api, admin: Api, test_tools: Any) -> None:
        workspace = await admin.call("POST", "/v1/workspaces", {"name": "x"})
        assert workspace.status_code == 201
        session = await api.call("POST", "/v1/sessions", SESSION)
        path = f"/v1/sessions/{session.json()['id']}"
        tool = {"description": "x", "parameters": schema(), "url": test_tools.url("x")}
        turn = {"input": "Hello", "script": ["Hi."]}
        for method, where, body, status in (
            ("GET", path, None, 200),
            ("PATCH", path, {"title": "x"}, 200),
            ("POST", f"{path}/messages", {"messages": [{"role": "user", "content": "x"}]}, 201),
            ("POST", f"{path}/tokens", {}, 201),
            ("PUT", "/v1/tools/x", tool, 201),
            ("PUT", "/v1/tools/x", tool, 200),
            ("DELETE", "/v1/tools/x", None, 204),
            ("POST", f"{path}/runs", turn, 200),
            ("POST", f"{path}/runs", {**turn, "background": True, "on_conflict": "queue"}, 202),
            ("POST", f"{path}/runs", {**turn, "stream": True, "on_conflict": "queue"}, 200),
            ("DELETE", path, None, 204),
            ("GET", path, None, 404),
        ):
            response = await api.call(method, where, body)
            assert response.status_code == status, (method, where, response.text)
            assert (response.content == b"") == (status == 204)

    async def test_a_path_that_is_none_is_a_404_and_a_method_that_is_none_a_405(self, api: Api) -> None:
        problem(await api.call("GET", "/v1/nothing"), 404, "not_found")
        problem(await api.call("GET", "/"), 404, "not_found")
        response = await api.call("DELETE", "/v1/sessions")
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"]

    async def test_every_answer_has_a_request_id(self, api: Api) -> None:
        answers = [
            await api.call("GET", "/v1/sessions"),
            await api.call("GET", "/v1/nothing"),
            await api.http.get("/healthz"),
        ]
        ids = {response.headers["x-request-id"] for response in answers}
        assert len(ids) == 3

    async def test_health_asks_for_no_key(self, http: httpx.AsyncClient) -> None:
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert set(ready.json()["checks"].values()) == {"ok"}
        assert (await http.get("/metrics")).headers["content-type"].startswith("text/plain")


class TestInternalErrors:
    async def test_one_says_its_request_id_and_nothing_else(self, admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        async def broken(*_: Any) -> None:
            raise RuntimeError("SELECT secret FROM vault at db.internal:5432")

        monkeypatch.setattr(keys, "list_workspaces", broken)
        logged = Mock()
        monkeypatch.setattr(request_log, "log", logged)
        response = await admin.call("GET", "/v1/workspaces")
        assert logged.error.call_args.kwargs["exc_info"] is not None
        document = problem(response, 500, "internal")
        assert set(document) == {"type", "title", "status", "detail", "code"}
        assert response.headers["x-request-id"] in document["detail"]
        for word in ("SELECT", "vault", "db.internal", "RuntimeError", "Traceback", ".py"):
            assert word not in response.text

    async def test_a_database_out_of_reach_is_503_with_a_time_to_come_back(
        self, admin: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: Any) -> None:
            raise ConnectionRefusedError("db.internal:5432")

        monkeypatch.setattr(keys, "list_workspaces", away)
        response = await admin.call("GET", "/v1/workspaces")
        problem(response, 503, "capacity")
        assert int(response.headers["retry-after"]) >= 1
        assert "db.internal" not in response.text

    async def test_a_refusal_does_not_repeat_what_may_be_a_secret(self, api: Api) -> None:
        body = {"description": "x", "parameters": schema(), "url": "http://127.0.0.1:9/x", "headers": {"X-Key": 5}}
        response = await api.call("PUT", "/v1/tools/x", {**body, "surprise": "hunter2-hunter2"})
        assert "hunter2" not in json.dumps(problem(response, 422))
        response = await api.http.get("/v1/sessions", headers={"Authorization": "Bearer hunter2-hunter2"})
        assert "hunter2" not in json.dumps(problem(response, 401))


class TestIdempotencyKeyHeader:
    @pytest.mark.parametrize("key", ["x", "a" * 255, "!~", "6f1ed002-ab5f-4bf2-a7bd-0d3e4b3a0e7c", 'say"hi"'])
    async def test_any_visible_ascii_up_to_255_is_taken(self, api: Api, key: str) -> None:
        assert (await api.call("POST", "/v1/sessions", SESSION, Idempotency_Key=key)).status_code == 201

    @pytest.mark.parametrize("key", [b"", b"a" * 256, b"a b c", b"a\tb", "ñ".encode(), "ñ".encode("latin-1")])
    async def test_anything_else_is_refused(self, api: Api, key: bytes) -> None:
        session_id = await api.new_session()
        for path, body in (
            ("/v1/sessions", SESSION),
            (f"/v1/sessions/{session_id}/runs", {"input": "Hello", "script": ["Hi."]}),
            (f"/v1/sessions/{session_id}/tokens", {}),
        ):
            headers = [(name.encode(), value.encode()) for name, value in api.headers().items()]
            response = await api.http.post(path, json=body, headers=[*headers, (b"Idempotency-Key", key)])
            problem(response, 422)
        assert await api.messages(session_id) == []
