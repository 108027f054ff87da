"""The seven cases that an agent loop meets in practice, one run each, as the model, the client and the caller see them."""

import json
import re

from tests.api import Api, TestTools, call, calls, schema, wanted
from tests.tools_app import Reply

PARAMETERS = schema(("city",), city="string", guests={"type": "integer", "minimum": 1})


class TestSevenCases:
    async def test_a_a_valid_call_is_answered(self, api: Api, test_tools: TestTools) -> None:
        hotels = await test_tools.host(api, "find_hotels", {"items": [{"name": "Sol"}]}, parameters=PARAMETERS)
        played = await api.play(call("find_hotels", {"city": "Cádiz", "guests": 2}), "There is the Sol.")
        assert played.ending == ("completed", "stop")
        assert played.run["output"] == "There is the Sol."
        assert hotels.arguments == [{"city": "Cádiz", "guests": 2}]
        assert played.outcomes == ["ok"]
        roles = [(message["role"], message["content"]) for message in played.messages]
        assert roles == [
            ("user", "Hello"), ("assistant", ""), ("tool", '{"items":[{"name":"Sol"}]}'),
            ("assistant", "There is the Sol."),
        ]  # fmt: skip

    async def test_b_a_bad_argument_is_told_to_the_model_and_the_retry_runs(self, api: Api, test_tools: TestTools) -> None:
        hotels = await test_tools.host(api, "find_hotels", {"items": [1]}, parameters=PARAMETERS)
        turns = [call("find_hotels", {"town": "Cádiz"}), call("find_hotels", {"city": "Cádiz"})]
        played = await api.play(*turns, "One hotel.")
        assert played.outcomes == ["invalid", "ok"]
        assert "city" in played.contents[0]
        assert hotels.arguments == [{"city": "Cádiz"}]
        assert played.run["output"] == "One hotel."
        assert played.ending == ("completed", "stop")

    async def test_b2_a_wrong_type_is_told_to_the_model_and_the_retry_runs(self, api: Api, test_tools: TestTools) -> None:
        hotels = await test_tools.host(api, "find_hotels", {"items": [1]}, parameters=PARAMETERS)
        turns = [
            call("find_hotels", {"city": "Cádiz", "guests": "a couple"}),
            call("find_hotels", {"city": "Cádiz", "guests": "2"}),
        ]
        played = await api.play(*turns, "One hotel.")
        assert played.outcomes == ["invalid", "ok"]
        assert "guests" in played.contents[0]
        assert "integer" in played.contents[0]
        assert hotels.arguments == [{"city": "Cádiz", "guests": 2}]
        assert played.ending == ("completed", "stop")

    async def test_c_a_throwing_tool_reaches_the_model_as_a_sentence_and_nothing_leaks(
        self, api: Api, test_tools: TestTools
    ) -> None:
        page = {
            "message": "SQLSTATE[42P01]: relation hotels_live does not exist",
            "exception": "PDOException",
            "file": "/var/www/app/Hotels.php",
            "trace": [{"file": "/var/www/vendor/x.php", "line": 7}],
        }
        await test_tools.host(api, "find_hotels", Reply(500, page), parameters=PARAMETERS)
        streamed = await api.stream_run(await api.new_session(), call("find_hotels", {"city": "Cádiz"}), "Not now, sorry.")
        played = await api.played(streamed[-1].data["run"])
        assert played.contents == ['{"error":"The tool find_hotels is temporarily unavailable."}']
        assert played.outcomes == ["failed"]
        assert played.ending == ("completed", "stop")
        seen = played.shown() + json.dumps([event.data for event in streamed])
        for secret in ("SQLSTATE", "hotels_live", "PDOException", "/var/www", "Hotels.php"):
            assert secret not in seen
        assert not re.search(r"(?<![\w.])500(?![\w.])", seen), "a status, not three digits of an id or a time"
        assert played.calls[0]["status"] == 500
        assert "SQLSTATE" in played.calls[0]["cause"]

    async def test_d_a_wrong_tool_name_is_corrected(self, api: Api, test_tools: TestTools) -> None:
        hotels = await test_tools.host(api, "find_hotels", {"items": [1]}, parameters=PARAMETERS)
        turns = [call("search_hotels", {"city": "Cádiz"}), call("find_hotels", {"city": "Cádiz"})]
        played = await api.play(*turns, "One hotel.")
        assert played.results[0] == {"error": "Tool 'search_hotels' does not exist. Available tools: find_hotels."}
        assert played.outcomes == ["unknown", "ok"]
        assert len(hotels.requests) == 1
        assert played.run["output"] == "One hotel."

    async def test_e_an_endless_caller_is_bounded_and_the_run_says_so(self, api: Api, test_tools: TestTools) -> None:
        hotels = await test_tools.host(api, "find_hotels", {"items": [1]}, parameters=PARAMETERS)
        endless = [call("find_hotels", {"city": f"City {n}"}) for n in range(50)]
        played = await api.play(*endless, max_iterations=5)
        assert played.ending == ("incomplete", "max_iterations")
        assert len(played.model_calls) == 5
        assert len(hotels.requests) == 4
        assert played.outcomes == ["ok"] * 4 + ["skipped"]
        assert played.run["output"] is None
        assert played.types[-1] == "run.incomplete"

    async def test_g_two_empty_searches_get_the_hint_and_end_honestly(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "find_hotels", {"items": []}, parameters=PARAMETERS)
        two = calls(wanted("find_hotels", {"city": "Cádiz"}))
        played = await api.play(two, call("find_hotels", {"city": "Cadiz"}), "I found no hotel.")
        assert played.outcomes == ["empty", "empty"]
        assert played.contents[0] == '{"items":[]}'
        assert played.contents[1].startswith('{"items":[]}')
        assert len(played.contents[1]) > len('{"items":[]}')
        assert "2" in played.contents[1]
        assert [event["streak"] for event in played.of("guard.hint")] == [2]
        assert played.ending == ("completed", "stop")
        assert played.run["output"] == "I found no hotel."
