"""`response_schema`: the final answer as JSON of a wanted shape, with one repair."""

from tests.api import Api

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
}
GOOD = '{"city": "Vigo", "celsius": 14}'


class TestAnswersOfAShape:
    async def test_json_that_fits_is_parsed(self, api: Api) -> None:
        run = await api.run(await api.new_session(), GOOD, response_schema=SCHEMA)
        assert run["status"] == "completed"
        assert run["output"] == GOOD
        assert run["output_parsed"] == {"city": "Vigo", "celsius": 14}

    async def test_json_in_a_fence_is_parsed(self, api: Api) -> None:
        run = await api.run(await api.new_session(), f"```json\n{GOOD}\n```", response_schema=SCHEMA)
        assert run["output_parsed"] == {"city": "Vigo", "celsius": 14}

    async def test_a_misfit_is_sent_back_once_and_the_mended_answer_counts(self, api: Api) -> None:
        run = await api.run(await api.new_session(), '{"city": "Vigo"}', GOOD, response_schema=SCHEMA)
        assert run["iterations"] == 2
        assert run["output_parsed"] == {"city": "Vigo", "celsius": 14}

    async def test_a_second_misfit_is_given_as_it_is_without_a_parsed_value(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "no", "still no", "unused", response_schema=SCHEMA)
        assert (run["iterations"], run["output"], run["output_parsed"]) == (2, "still no", None)

    async def test_the_cap_leaves_no_repair(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "no", response_schema=SCHEMA, max_iterations=1)
        assert (run["iterations"], run["output_parsed"]) == (1, None)

    async def test_a_schema_of_a_list_is_fine(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "[1, 2]", response_schema={"type": "array"})
        assert run["output_parsed"] == [1, 2]

    async def test_what_is_no_schema_is_refused(self, api: Api) -> None:
        session_id = await api.new_session()
        for schema in ({"type": "nonsense"}, {"$ref": "https://example.org/schema.json"}):
            answer = await api.run(session_id, GOOD, response_schema=schema, status=422)
            assert answer["errors"][0]["loc"][:2] == ["body", "response_schema"]
        assert await api.messages(session_id) == []
