"""Both providers' wire formats behind one face: a turn as a script writes it -> the bytes of a model API, and what such an
API was sent -> plain values. `Wire` is the whole service with such an API behind it.

    played = await wire.play(call("search", {"q": "x"}), "Found one.")
    assert wire.results(1) == ['{"items":[1]}']          # what the second model call was told
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any, Protocol

import httpx

from app.infra.settings import Settings
from tests.api import Api, Played
from tests.providers import messages_api as messages
from tests.providers.model_server import DONE, Answer, ModelServer, chat_usage, chunk, json_answer, sse


class Format(Protocol):
    """One wire format. `model` is asked by that name; `settings` point the service at a server of this format."""

    name: str
    model: str

    def settings(self, settings: Settings, server: ModelServer) -> Settings: ...

    def stream(self, turn: dict[str, Any]) -> list[Any]:
        """The events of a turn; without its end when it has an `error`."""
        ...

    def answer(self, events: list[Any], **how: Any) -> Answer: ...

    def error(self, status: int, message: str) -> dict[str, Any]: ...

    def results(self, body: dict[str, Any]) -> list[str]:
        """What the calls of the last assistant turn are told to have given."""
        ...

    def prose(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        """Role and text of what was said, the system prompt first; turns without any text are left out."""
        ...

    def tools(self, body: dict[str, Any]) -> tuple[list[str], str | None]:
        """The names on offer, and the choice in Rondo's words."""
        ...


def texts_of(turn: dict[str, Any], kind: str) -> list[str]:
    text = turn.get(kind) or ""
    size = turn.get("chunk_chars") or len(text) or 1
    return [text[at : at + size] for at in range(0, len(text), size)]


_ids = itertools.count(1)


def calls_of(turn: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Id, name and arguments' text of each call; the id is the script's own where it gives one."""
    for made in turn.get("tool_calls") or ():
        arguments = made["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield made.get("id") or f"toolu_{next(_ids)}", made["name"], text


class ChatCompletions:
    name = "openai"
    model = "openai/gpt-test"

    def settings(self, settings: Settings, server: ModelServer) -> Settings:
        return settings.model_copy(update={"openai_base_url": server.base_url})

    def stream(self, turn: dict[str, Any]) -> list[Any]:
        said = [chunk("", role="assistant")]
        said += [chunk(reasoning_content=text) for text in texts_of(turn, "reasoning")]
        said += [chunk(text) for text in texts_of(turn, "text")]
        for index, (call_id, name, text) in enumerate(calls_of(turn)):
            head, tail = text[: len(text) // 2], text[len(text) // 2 :]
            said.append(_call_piece(index, {"name": name, "arguments": head}, id=call_id, type="function"))
            said.append(_call_piece(index, {"arguments": tail}))
        if turn.get("error"):
            return said
        finish = turn.get("finish_reason", "tool_calls" if turn.get("tool_calls") else "stop")
        usage = turn.get("usage") or {}
        counts = chat_usage(usage.get("input_tokens", 0), usage.get("output_tokens", 0))
        return [*said, chunk(finish=finish), counts, DONE]

    def answer(self, events: list[Any], **how: Any) -> Answer:
        return sse(*events, **how)

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "some_error", "code": str(status)}}

    def results(self, body: dict[str, Any]) -> list[str]:
        asked = max(at for at, message in enumerate(body["messages"]) if message["role"] == "assistant")
        turn, answers = body["messages"][asked], body["messages"][asked + 1 :]
        told = [message for message in answers if message["role"] == "tool"]
        assert [message["tool_call_id"] for message in told] == [made["id"] for made in turn["tool_calls"]]
        return [message["content"] for message in told]

    def prose(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        said = [(message["role"], message["content"]) for message in body["messages"] if message["role"] != "tool"]
        return [(role, content) for role, content in said if content]

    def tools(self, body: dict[str, Any]) -> tuple[list[str], str | None]:
        choice = body.get("tool_choice")
        named = choice["function"]["name"] if isinstance(choice, dict) else choice
        return [tool["function"]["name"] for tool in body.get("tools", ())], named


def _call_piece(index: int, function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, **more, "function": function}])


class Messages:
    name = "anthropic"
    model = "anthropic/claude-sonnet-4-5"
    _REASONS = {
        "stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use",
        "function_call": "tool_use",
    }  # fmt: skip

    def settings(self, settings: Settings, server: ModelServer) -> Settings:
        return settings.model_copy(update={"anthropic_base_url": server.address, "anthropic_api_key": "sk-ant-test"})

    def stream(self, turn: dict[str, Any]) -> list[Any]:
        usage = turn.get("usage") or {}
        counts = {"input_tokens": usage.get("input_tokens", 0), "output_tokens": 0}
        said = [{**messages.START, "message": {**messages.START["message"], "usage": counts}}, messages.PING]
        index = itertools.count()
        if thoughts := texts_of(turn, "reasoning"):
            said += messages.thinking(next(index), *thoughts, signature="sig==")
        if texts := texts_of(turn, "text"):
            said += messages.text(next(index), *texts)
        for call_id, name, text in calls_of(turn):
            said += messages.call(next(index), call_id, name, text[: len(text) // 2], text[len(text) // 2 :])
        if turn.get("error"):
            return said
        finish = turn.get("finish_reason", "tool_calls" if turn.get("tool_calls") else "stop")
        reason = self._REASONS.get(finish, finish)
        return [*said, messages.finished(reason, output_tokens=usage.get("output_tokens", 0)), messages.STOP]

    def answer(self, events: list[Any], **how: Any) -> Answer:
        return messages.events(*events, **how)

    def error(self, status: int, message: str) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kinds |= {400: "invalid_request_error", 413: "request_too_large", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}

    def results(self, body: dict[str, Any]) -> list[str]:
        asked = max(at for at, message in enumerate(body["messages"]) if message["role"] == "assistant")
        made = [block["id"] for block in body["messages"][asked]["content"] if block["type"] == "tool_use"]
        told = [block for block in body["messages"][asked + 1]["content"] if block["type"] == "tool_result"]
        assert [block["tool_use_id"] for block in told] == made
        return [block.get("content", "") for block in told]

    def prose(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        said = [("system", body.get("system", ())), *((turn["role"], turn["content"]) for turn in body["messages"])]
        joined = [(role, "\n\n".join(block["text"] for block in blocks if block["type"] == "text")) for role, blocks in said]
        return [(role, text) for role, text in joined if text]

    def tools(self, body: dict[str, Any]) -> tuple[list[str], str | None]:
        choice = body.get("tool_choice", {})
        kinds = {"any": "required", "tool": choice.get("name")}
        return [tool["name"] for tool in body.get("tools", ())], kinds.get(choice.get("type"), choice.get("type"))


FORMATS: tuple[Format, ...] = (ChatCompletions(), Messages())


class Wire:
    """The service in front of a model API of one format, as one workspace sees it."""

    def __init__(self, format: Format, server: ModelServer, http: httpx.AsyncClient, api: Api) -> None:
        self.format, self.server = format, server
        self.api = Api(http, api.key, api.workspace_id)
        server.forget()

    def answer(self, turn: Any, **how: Any) -> Answer:
        """The bytes of a script's turn: an `error` alone is a status, one behind a text comes inside the stream."""
        turn = {"text": turn} if isinstance(turn, str) else turn
        error = turn.get("error")
        said = turn.get("text") or turn.get("reasoning") or turn.get("tool_calls")
        if error and not said:
            return json_answer(self.format.error(error["status"], error["message"]), error["status"])
        events = self.format.stream(turn)
        if error:
            events.append(self.format.error(error["status"], error["message"]))
        return self.format.answer([*([turn["delay_ms"] / 1000] if turn.get("delay_ms") else []), *events], **how)

    def script(self, *turns: Any) -> None:
        """Have these turns (of a script, or `Answer`s) be what the next model calls get."""
        self.server.play(*(turn if isinstance(turn, Answer) else self.answer(turn) for turn in turns))

    async def run(self, session: str, *turns: Any, **fields: Any) -> Any:
        self.script(*turns)
        return await self.api.run(session, model=fields.pop("model", self.format.model), **fields)

    async def play(self, *turns: Any, session: str | None = None, **fields: Any) -> Played:
        """A run to its end; every turn must have been asked for."""
        run = await self.run(session or await self.api.new_session(), *turns, **fields)
        assert self.server.left == 0, "the model was asked less often than the test has turns"
        return await self.api.played(run)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.json for request in self.server.requests]

    def results(self, asked: int = -1) -> list[str]:
        return self.format.results(self.bodies[asked])

    def prose(self, asked: int = -1) -> list[tuple[str, str]]:
        return self.format.prose(self.bodies[asked])

    def tools(self, asked: int = -1) -> tuple[list[str], str | None]:
        return self.format.tools(self.bodies[asked])
