"""Hooks of the operator, with the example module and with ones that misbehave."""

import textwrap
from pathlib import Path

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings, SettingsError
from app.main import create_app
from app.runs.hooks import load_hooks
from tests.api import Api, call
from tests.conftest import serving
from tests.providers.model_server import DONE, ModelServer, sse
from tests.tools_app import TestTools

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "hooks" / "member_rules.py")
HELLO = sse({"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}]}, DONE)


def module(tmp_path: Path, text: str) -> str:
    file = tmp_path / "hooks.py"
    file.write_text(textwrap.dedent(text))
    return str(file)


@pytest.fixture
def serve(migrated: Database, settings: Settings):  # type: ignore[no-untyped-def]
    def with_hooks(name: str, **update: object):  # type: ignore[no-untyped-def]
        return serving(settings.model_copy(update={"hooks": name, **update}))

    return with_hooks


class TestExample:
    async def test_it_blocks_a_tool_by_member(self, serve, api: Api, test_tools: TestTools) -> None:  # type: ignore[no-untyped-def]
        hook = await test_tools.host(api, "schedule_viewing", {"ok": True})
        async with serve(EXAMPLE) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            there = Api(http, api.key, api.workspace_id)
            blocked = await there.new_session(member={"type": "intern", "id": "1"})
            run = await there.run(blocked, call("schedule_viewing"), "Done")
            assert run["status"] == "completed"
            assert (await there.messages(blocked))[2]["content"] == '{"error":"This member may not do that."}'
            assert hook.requests == []
            await there.run(await there.new_session(member={"type": "agent", "id": "1"}), call("schedule_viewing"), "Done")
            assert len(hook.requests) == 1

    async def test_it_puts_a_header_above_the_system_prompt(self, serve, api: Api) -> None:  # type: ignore[no-untyped-def]
        async with ModelServer() as server:
            server.play(HELLO, HELLO)
            async with (
                serve(EXAMPLE, openai_base_url=server.base_url) as url,
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http,
            ):
                there = Api(http, api.key, api.workspace_id)
                await there.run(await there.new_session(model="openai/x", system_prompt="Be brief."))
                await there.run(await there.new_session(model="openai/x"))
            first, second = (request.json["messages"][0] for request in server.requests)
            assert first["content"].endswith("customers of Casa Nova only.\n\nBe brief.")
            assert second["role"] == "system"


class TestMisbehaviour:
    @pytest.mark.parametrize("name", ["before_model", "after_model", "before_tool", "after_tool"])
    async def test_one_that_raises_ends_the_run(  # type: ignore[no-untyped-def]
        self, serve, api: Api, test_tools: TestTools, tmp_path: Path, name: str
    ) -> None:
        await test_tools.host(api, "search", {"ok": True})
        file = module(tmp_path, f"def {name}(*arguments):\n    raise RuntimeError('inside the hook')\n")
        async with serve(file) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            there = Api(http, api.key, api.workspace_id)
            run = await there.run(await there.new_session(), call("search"), "Done")
        assert (run["status"], run["error"]["code"]) == ("failed", "hook_failed")
        assert "inside the hook" not in str(run)

    @pytest.mark.parametrize(
        "hook",
        [
            "def before_model(messages, run):\n    return 'hello'\n",
            "def before_model(messages, run):\n    return ['hello']\n",
            "def after_model(reply, run):\n    return reply.text\n",
            "async def before_tool(call, run):\n    return {'q': 1}\n",
            "def after_tool(call, result, run):\n    return result.result\n",
        ],
    )
    async def test_so_does_one_that_returns_another_kind_of_thing(  # type: ignore[no-untyped-def]
        self, serve, api: Api, test_tools: TestTools, tmp_path: Path, hook: str
    ) -> None:
        await test_tools.host(api, "search", {"ok": True})
        async with serve(module(tmp_path, hook)) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            there = Api(http, api.key, api.workspace_id)
            run = await there.run(await there.new_session(), call("search", text="I look."), "Done")
        assert (run["status"], run["error"]["code"]) == ("failed", "hook_failed")

    async def test_an_async_hook_changes_reply_and_result(  # type: ignore[no-untyped-def]
        self, serve, api: Api, test_tools: TestTools, tmp_path: Path
    ) -> None:
        await test_tools.host(api, "search", {"secret": "x", "items": [1]})
        file = module(
            tmp_path,
            """
            from dataclasses import replace

            async def after_tool(call, result, run):
                return replace(result, result={"items": result.result["items"]})

            def after_model(reply, run):
                return replace(reply, text=reply.text.upper()) if reply.text else None
            """,
        )
        async with serve(file) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            there = Api(http, api.key, api.workspace_id)
            session_id = await there.new_session()
            run = await there.run(session_id, call("search"), "Done")
            assert run["output"] == "DONE"
            assert (await there.messages(session_id))[2]["content"] == '{"items":[1]}'


class TestLoading:
    def test_a_module_that_is_not_there_stops_the_start(self) -> None:
        with pytest.raises(SettingsError, match="RONDO_HOOKS"):
            load_hooks("no.such.module")

    def test_one_without_any_hook_stops_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="defines none"):
            load_hooks(module(tmp_path, "x = 1"))

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("hooks", "no.such.module"),
            ("prices", "{"),
            ("redaction_entities", ("NAME",)),
            ("redaction_dictionary", "x"),
        ],
    )
    def test_a_wrong_one_stops_the_start_before_a_server_is_made(
        self, settings: Settings, setting: str, value: object
    ) -> None:
        with pytest.raises(SettingsError, match=f"RONDO_{setting.upper()}"):
            create_app(settings.model_copy(update={setting: value}))
