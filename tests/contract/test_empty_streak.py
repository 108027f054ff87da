"""The empty-streak guard, sentence by sentence (contract, section 4)."""

import json
from typing import Any

import pytest

from tests.api import Api, Played, TestTools, call, calls, schema, wanted
from tests.tools_app import Reply

HINT = "<:count in vain>"
EMPTY: dict[str, Any] = {"items": []}
FOUND = {"items": [1]}
NEUTRAL = {"status": "sent"}


async def searched(api: Api, test_tools: TestTools, *values: Any, **fields: Any) -> Played:
    """A run whose model calls `search` once a turn; each call gets the next value."""
    answers = [value if isinstance(value, Reply) else Reply(200, json.dumps(value)) for value in values]
    await test_tools.host(api, "search", *answers)
    options = {"empty_streak_hint": HINT, "max_iterations": 50, **fields}
    return await api.play(*[call("search", {"n": n}) for n in range(len(values))], "done", **options)


def hints(played: Played) -> list[str | None]:
    """What was appended to each result: the hint's text, or None."""
    found = [content[content.rindex("<") :] if content.endswith(">") else None for content in played.contents]
    told = [(event["call_id"], event["streak"]) for event in played.of("guard.hint")]
    ids = [made["call_id"] for made in played.calls]
    assert told == [(ids[i], int(hint[1:].split()[0])) for i, hint in enumerate(found) if hint]
    return found


async def counts(api: Api, test_tools: TestTools, value: Any, **fields: Any) -> bool:
    """Whether a result counts as empty: after one that does, it gets the hint."""
    played = await searched(api, test_tools, EMPTY, value, **fields)
    return hints(played)[1] is not None


async def resets(api: Api, test_tools: TestTools, value: Any, **fields: Any) -> bool:
    """Whether a result ends the streak: an empty one behind it starts anew."""
    played = await searched(api, test_tools, EMPTY, value, EMPTY, **fields)
    return hints(played)[2] is None


class TestWhatIsJudged:
    async def test_an_empty_list_or_an_object_with_an_empty_result_key_is_empty(
        self, api: Api, test_tools: TestTools
    ) -> None:
        values = [[], *({key: []} for key in ("items", "results", "matches", "passages", "data"))]
        played = await searched(api, test_tools, *values)
        assert played.outcomes == ["empty"] * 6
        assert hints(played) == [None] + [f"<{n} in vain>" for n in range(2, 7)]

    async def test_null_and_empty_list_object_and_string_are_empty(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, *[{"items": value} for value in (None, [], {}, "")])
        assert played.outcomes == ["empty"] * 4
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>", "<4 in vain>"]

    async def test_anything_else_under_a_result_key_is_found(self, api: Api, test_tools: TestTools) -> None:
        for_each = [[0], [None], [[]], [{}], {"a": None}, 0, False, " ", "no"]
        values = [item for value in for_each for item in (EMPTY, {"items": value})]
        played = await searched(api, test_tools, *values)
        assert played.outcomes == ["empty", "ok"] * len(for_each)
        assert hints(played) == [None] * len(values)

    async def test_a_list_with_something_in_it_is_found(self, api: Api, test_tools: TestTools) -> None:
        assert await resets(api, test_tools, [0])

    async def test_an_object_is_empty_when_all_of_the_keys_that_it_carries_are(
        self, api: Api, test_tools: TestTools
    ) -> None:
        assert await counts(api, test_tools, {"items": [], "results": None, "total": 7, "page": [1]})

    async def test_one_key_with_something_in_it_is_enough(self, api: Api, test_tools: TestTools) -> None:
        assert await resets(api, test_tools, {"items": [], "results": [1]})

    @pytest.mark.parametrize("value", [{"data": {"items": []}}, {"data": {"data": {"results": []}, "total": 3}}])
    async def test_an_object_under_a_key_that_carries_one_itself_is_judged_by_that(
        self, api: Api, test_tools: TestTools, value: Any
    ) -> None:
        assert await counts(api, test_tools, value)

    @pytest.mark.parametrize("value", [{"data": {"items": [1]}}, {"data": {"total": 0}}])
    async def test_an_object_under_a_key_that_holds_something_is_found(
        self, api: Api, test_tools: TestTools, value: Any
    ) -> None:
        assert await resets(api, test_tools, value)

    async def test_anything_else_is_neutral_and_neither_raises_nor_resets(self, api: Api, test_tools: TestTools) -> None:
        for_each = [{}, NEUTRAL, {"list": []}, "", "nothing", 0, None, False, {"error": None}]
        values = [item for value in for_each for item in (value, EMPTY, value)]
        played = await searched(api, test_tools, *values)
        assert played.outcomes == ["neutral", "empty", "neutral"] * len(for_each)
        streaks = [None if n == 1 else f"<{n} in vain>" for n in range(1, len(for_each) + 1)]
        assert hints(played) == [item for hint in streaks for item in (None, hint, None)]

    @pytest.mark.parametrize("reply", [Reply(204), Reply(200, "text", {"content-type": "text/plain"})])
    async def test_nothing_and_plain_text_are_neutral(self, api: Api, test_tools: TestTools, reply: Reply) -> None:
        played = await searched(api, test_tools, EMPTY, reply, EMPTY)
        assert played.outcomes[1] == "neutral"
        assert hints(played) == [None, None, "<2 in vain>"]


class TestErrors:
    async def test_an_error_with_nothing_found_beside_it_counts_as_empty(self, api: Api, test_tools: TestTools) -> None:
        values = [
            {"error": "down"}, {"error": {"code": 7}}, {"error": False}, {"error": ""}, {"error": "x", "items": []},
            {"error": "x", "status": "bad"},
        ]  # fmt: skip
        played = await searched(api, test_tools, EMPTY, *values)
        assert played.outcomes == ["empty"] + ["error"] * 6
        assert hints(played) == [None] + [f"<{n} in vain>" for n in range(2, 8)]

    async def test_an_error_with_something_found_beside_it_is_a_find(self, api: Api, test_tools: TestTools) -> None:
        assert await resets(api, test_tools, {"error": "one source is down", "items": [1]})

    async def test_a_null_error_does_not_count(self, api: Api, test_tools: TestTools) -> None:
        assert await resets(api, test_tools, {"error": None, "items": [1]})

    async def test_a_refused_or_failed_call_counts_as_empty(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, *[Reply(status) for status in (404, 422, 500)])
        assert played.outcomes == ["error", "error", "failed"]
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>"]

    async def test_an_invalid_call_counts_as_empty(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY, parameters=schema((), n="integer"))
        turns = [call("search"), call("search", {"n": "x"}), call("search", "{")]
        played = await api.play(*turns, "done", empty_streak_hint=HINT)
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>"]

    async def test_an_unknown_call_counts_as_empty(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY)
        played = await api.play(call("nope"), call("nada"), "done", empty_streak_hint=HINT)
        assert hints(played) == [None, "<2 in vain>"]

    async def test_a_skipped_call_is_not_judged(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY)
        played = await api.play(call("search"), call("search"), empty_streak_hint=HINT, max_iterations=2)
        assert played.outcomes == ["empty", "skipped"]
        assert hints(played) == [None, None]


class TestTheHint:
    async def test_it_stands_on_the_second_empty_result_and_on_each_further_one(
        self, api: Api, test_tools: TestTools
    ) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY, EMPTY, EMPTY)
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>", "<4 in vain>"]

    async def test_a_search_that_found_something_resets_it(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY, FOUND, EMPTY, EMPTY)
        assert hints(played) == [None, "<2 in vain>", None, None, "<2 in vain>"]

    async def test_it_counts_over_all_tools_of_the_run(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "one", EMPTY)
        await test_tools.host(api, "two", {"results": []})
        await test_tools.host(api, "three", Reply(500))
        played = await api.play(call("one"), call("two"), call("three"), "done", empty_streak_hint=HINT)
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>"]

    async def test_calls_of_one_turn_count_as_well(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY)
        turn = calls(*[wanted("search", {"n": n}) for n in range(3)])
        played = await api.play(turn, "done", empty_streak_hint=HINT, parallel_tools=1)
        assert hints(played) == [None, "<2 in vain>", "<3 in vain>"]

    async def test_it_does_not_reach_into_the_next_run(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY)
        session = await api.new_session()
        for _ in range(2):
            played = await api.play(call("search"), "done", session=session, empty_streak_hint=HINT)
            assert hints(played) == [None]

    async def test_the_tools_own_text_and_hint_stay(self, api: Api, test_tools: TestTools) -> None:
        value = {"items": [], "hint": "Try another month."}
        played = await searched(api, test_tools, value, value)
        own = '{"items":[],"hint":"Try another month."}'
        assert played.contents[0] == own
        assert played.contents[1].startswith(own)
        assert played.contents[1].endswith("<2 in vain>")

    async def test_it_is_appended_after_truncation_and_never_cut(self, api: Api, test_tools: TestTools) -> None:
        value = {"text": "x" * 500, "items": []}
        played = await searched(api, test_tools, value, value, max_tool_result_chars=100)
        assert len(played.contents[0]) == 101
        assert played.contents[1].startswith(played.contents[0])
        assert played.contents[1].endswith("<2 in vain>")

    async def test_the_model_alone_sees_it_the_result_stays_the_tools_own(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY)
        assert played.results == [EMPTY, EMPTY]
        assert [event["result"] for event in played.of("tool.invoked")] == [EMPTY, EMPTY]
        tool_messages = [message["content"] for message in played.messages if message["role"] == "tool"]
        assert tool_messages == played.contents

    async def test_every_count_is_replaced(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY, empty_streak_hint="<:count and :count>")
        assert played.contents[1].endswith("<2 and 2>")

    async def test_the_built_in_text_names_the_streak(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY, EMPTY, empty_streak_hint=None)
        assert "2" in played.contents[1].removeprefix('{"items":[]}')
        assert "3" in played.contents[2].removeprefix('{"items":[]}')
        assert ":count" not in played.contents[1]

    async def test_the_event_tells_the_iteration_the_call_and_the_streak(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY)
        event = played.of("guard.hint")[0]
        assert (event["iteration"], event["streak"]) == (2, 2)
        assert event["call_id"] == played.calls[1]["call_id"]


class TestItsOptions:
    async def test_zero_turns_it_off(self, api: Api, test_tools: TestTools) -> None:
        played = await searched(api, test_tools, *[EMPTY] * 4, empty_streak_after=0)
        assert hints(played) == [None] * 4
        assert played.outcomes == ["empty"] * 4

    @pytest.mark.parametrize(("after", "expected"), [(1, ["<1 in vain>", "<2 in vain>"]), (3, [None, None])])
    async def test_it_begins_after_the_given_number(
        self, api: Api, test_tools: TestTools, after: int, expected: list[str | None]
    ) -> None:
        played = await searched(api, test_tools, EMPTY, EMPTY, empty_streak_after=after)
        assert hints(played) == expected

    async def test_the_session_may_set_it_and_the_run_override_it(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", EMPTY)
        config = {"empty_streak_after": 1, "empty_streak_hint": "<:count session>"}
        session = await api.new_session(config=config)
        played = await api.play(call("search"), "done", session=session)
        assert played.contents[0].endswith("<1 session>")
        played = await api.play(call("search"), "done", session=session, empty_streak_hint="<:count run>")
        assert played.contents[0].endswith("<1 run>")

    async def test_result_keys_of_the_run_replace_the_built_in_ones(self, api: Api, test_tools: TestTools) -> None:
        assert await counts(api, test_tools, {"hits": []}, result_keys=["hits", "items"])
        assert not await counts(api, test_tools, {"results": []}, result_keys=["hits", "items"])

    async def test_result_keys_of_a_tool_hold_for_that_tool_alone(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "own", {"hits": [], "items": [1]}, result_keys=["hits"])
        await test_tools.host(api, "other", {"hits": [1], "items": []})
        played = await api.play(call("own"), call("other"), "done", empty_streak_hint=HINT)
        assert played.outcomes == ["empty", "empty"]
        assert hints(played) == [None, "<2 in vain>"]

    async def test_result_keys_of_a_tool_win_over_those_of_the_run(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "own", {"hits": [], "rows": [1]}, result_keys=["hits"])
        played = await api.play(call("own"), "done", result_keys=["rows"])
        assert played.outcomes == ["empty"]
