"""Whatever a history looks like, what a Messages API server is sent keeps all of its rules."""

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.loop.messages import Image, Message, ToolCall
from tests.providers.messages_request import (
    ME,
    OTHER,
    SEARCH,
    SERVER_CALL,
    SERVER_RESULT,
    THOUGHT,
    body,
    said,
    turn,
    use,
)


def judge(asked: dict[str, Any]) -> None:
    """Raises AssertionError for a request that the API would refuse."""
    messages = asked["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"] * (
        len(messages) % 2
    )
    judge_blocks(asked)
    judge_pairs(messages)
    judge_server_tools(messages)
    assert json.dumps(asked).count('"cache_control"') <= 4
    if any(block["type"] in ("tool_use", "tool_result") for message in messages for block in message["content"]):
        assert asked["tools"]


def judge_blocks(asked: dict[str, Any]) -> None:
    for message in asked["messages"]:
        assert message["content"]
        for block in message["content"]:
            if block["type"] == "text":
                assert block["text"].strip()
            if block["type"] == "tool_use":
                assert re.fullmatch("[a-zA-Z0-9_-]+", block["id"])
                assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", block["name"])
                assert isinstance(block["input"], dict)
            if block["type"] in ("thinking", "redacted_thinking", "server_tool_use"):
                assert "cache_control" not in block
        if message["role"] == "assistant":
            assert message["content"][-1]["type"] not in ("thinking", "redacted_thinking")
    last = asked["messages"][-1]
    if last["role"] == "assistant" and last["content"][-1]["type"] == "text":
        assert last["content"][-1]["text"] == last["content"][-1]["text"].rstrip()
    for block in asked.get("system", ()):
        assert block["text"].strip()
    thinks = asked.get("thinking", {}).get("type") == "enabled"
    if thinks and last["content"][0]["type"] == "tool_result":
        assert asked["messages"][-2]["content"][0]["type"] in ("thinking", "redacted_thinking")


def judge_pairs(messages: list[Any]) -> None:
    seen: set[str] = set()
    for message, following in zip(messages, [*messages[1:], {"content": []}], strict=True):
        uses = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert not seen & set(uses)
        assert len(set(uses)) == len(uses)
        seen |= set(uses)
        results = [block["tool_use_id"] for block in following["content"] if block["type"] == "tool_result"]
        assert sorted(results) == sorted(uses)
        assert all(block["type"] == "tool_result" for block in following["content"][: len(results)])
        assert message["role"] == "assistant" or not uses
    assert not any(block["type"] == "tool_result" for block in messages[0]["content"])


def judge_server_tools(messages: list[Any]) -> None:
    open_ids: set[str] = set()
    for at, message in enumerate(messages):
        for block in message["content"]:
            if block["type"] == "server_tool_use":
                open_ids.add(block["id"])
            elif block["type"] == "web_search_tool_result":
                assert block["tool_use_id"] in open_ids
                open_ids.discard(block["tool_use_id"])
        following = [block["type"] for later in messages[at + 1 :] for block in later["content"]]
        if message["role"] == "assistant" and set(following) - {"tool_result"}:
            answered_later = {block.get("tool_use_id") for later in messages[at + 1 :] for block in later["content"]}
            assert open_ids <= answered_later


def users_words(history: list[Message]) -> list[str]:
    return [part for message in history if message.role == "user" for part in said_in(message.content)]


def said_in(content: Any) -> list[str]:
    return [part for part in ([content] if isinstance(content, str) else content) if isinstance(part, str) and part.strip()]


texts = st.sampled_from(["", " ", "a", "b \n"])
ids = st.sampled_from([None, "", "toolu_1", "toolu_2", "call_0", "functions.x:1"])
calls = st.builds(
    lambda n, given, name, arguments: ToolCall(f"call_{n}", name, arguments, "", given),
    st.integers(0, 3),
    ids,
    st.sampled_from(["search", "", "no such ç"]),
    st.sampled_from([None, {}, {"a": 1}]),
)
contents = texts | st.lists(texts | st.builds(Image, url=st.just("http://h/x.png")), max_size=3).map(tuple)
counter = iter(range(10**9))


def native(kinds: list[str], calls: list[ToolCall]) -> list[dict[str, Any]]:
    """Blocks as a model may have written them; server tools' ids are never given twice."""
    blocks: list[dict[str, Any]] = []
    for kind in kinds:
        server_id = f"srvtoolu_{next(counter)}"
        call = {**SERVER_CALL, "id": server_id}
        answer = {**SERVER_RESULT, "tool_use_id": server_id}
        blocks += {
            "thought": [THOUGHT],
            "text": [said("a ")],
            "blank": [said("")],
            "call": [use(call_.provider_id or "", call_.name) for call_ in calls[:1]],
            "calls": [use(call_.provider_id or "toolu_9") for call_ in calls],
            "search": [call, answer],
            "open": [call],
            "answer": [answer],
        }[kind]
    return blocks


KINDS = ["thought", "text", "blank", "call", "calls", "search", "open", "answer"]
assistants = st.builds(
    lambda text, calls, kinds, by: turn(*calls, text=text, blocks=native(kinds, calls), by=by),
    texts,
    st.lists(calls, max_size=3),
    st.lists(st.sampled_from(KINDS), max_size=5),
    st.sampled_from([ME, OTHER]),
)
results = st.builds(lambda n, text: Message("tool", text, tool_call_id=n and f"call_{n}"), st.integers(0, 4), contents)
systems = st.builds(Message, st.just("system"), st.sampled_from(["", "S"]))
users = st.builds(Message, st.just("user"), contents)
histories = st.lists(assistants | results | systems | users, max_size=12)


class TestAnyHistory:
    @settings(max_examples=300, deadline=None)
    @given(
        histories,
        st.sampled_from([(), (SEARCH,)]),
        st.sampled_from([(), ("reasoning",), ("web_search",)]),
        st.sampled_from(["auto", "none", "required"]),
    )
    def test_the_api_takes_it(self, history, tools, capabilities, choice):
        """B05, B07, B08, B10, B11, B13, B19, B22: whatever is broken."""
        asked = body(*history, tools=tools, capabilities=capabilities, choice=choice)
        judge(asked)
        told = [block["text"] for m in asked["messages"] if m["role"] == "user" for block in m["content"] if "text" in block]
        assert [text for text in told if text in ("a", "b \n")] == users_words(history)
        assert asked == body(*history, tools=tools, capabilities=capabilities, choice=choice)
        if "thinking" in asked:
            assert asked.get("tool_choice", {}).get("type") not in ("any", "tool")
