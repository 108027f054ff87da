"""`GET /v1/runs/{id}/script`: what a model said in a run, from either wire format, to play it again without that model."""

from typing import Any

from tests.api import Played, TestTools, call, calls, wanted
from tests.contract.wires import Wire

USAGE = {"input_tokens": 10, "output_tokens": 3}
KEPT = ("iteration", "tool", "arguments", "result", "outcome", "finish_reason", "usage", "streak")


def told(played: Played) -> list[tuple[str, Any]]:
    """The events without ids and times; what was shown in pieces as one."""
    shown: list[tuple[str, Any]] = []
    for event in played.events:
        kept = {key: event.data[key] for key in KEPT if key in event.data}
        if event.type.endswith(".delta"):
            if shown and shown[-1][0] == event.type:
                shown[-1] = (event.type, shown[-1][1] + event.data["text"])
            else:
                shown.append((event.type, event.data["text"]))
        else:
            shown.append((event.type, kept | {"content": event.data.get("message", {}).get("content")}))
    return shown


class TestReplay:
    async def again(self, wire: Wire, first: Played, **fields: Any) -> Played:
        script = (await wire.api.get(f"/v1/runs/{first.run['id']}/script"))["script"]
        asked = len(wire.bodies)
        second = await wire.api.play(*script, **fields)
        assert len(wire.bodies) == asked
        return second

    async def test_it_gives_the_same_run_and_the_same_events(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": []})
        fields: dict[str, Any] = {"max_iterations": 4, "parallel_tools": 1}
        turns = [
            calls(wanted("search", {"b": 1, "a": "é"}), wanted("nope", '{"cut'), text="Let me look.", usage=USAGE),
            {**call("search", {}, reasoning="Again."), "chunk_chars": 3},
            " \n",
            {"text": "Nothing there.", "chunk_chars": 5, "usage": USAGE},
        ]
        first = await wire.play(*turns, **fields)
        second = await self.again(wire, first, **fields)
        assert told(second) == told(first)
        same = ("status", "finish_reason", "output", "iterations", "tool_calls", "usage")
        assert {key: second.run[key] for key in same} == {key: first.run[key] for key in same}

    async def test_a_turn_that_was_paused_is_paused_again(self, wire: Wire) -> None:
        turns = [{"text": "Looking. ", "finish_reason": "pause_turn"}, "Found one."]
        first = await wire.play(*turns[: 2 if wire.format.name == "anthropic" else 1])
        assert told(await self.again(wire, first)) == told(first)

    async def test_a_cut_answer_is_cut_again(self, wire: Wire) -> None:
        first = await wire.play({"text": "Once upon", "finish_reason": "length"})
        assert told(await self.again(wire, first)) == told(first)
