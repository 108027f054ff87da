import json
from typing import Any

import pytest

from app.loop.messages import ToolOutcome, ToolResult
from app.outbound.sender import Answer
from app.tools.answers import result_of

UNAVAILABLE = {"error": "The tool find is temporarily unavailable."}


def answer(body: bytes | str | object, status: int = 200, content_type: str | None = "application/json") -> Answer:
    raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return Answer(status, {} if content_type is None else {"content-type": content_type}, raw, 0.01)


def read(body: bytes | str | object, status: int = 200, content_type: str | None = "application/json") -> ToolResult:
    return result_of("find", answer(body, status, content_type))


def refusal(body: bytes | str | object, status: int = 422, content_type: str | None = "application/json") -> str:
    found = read(body, status, content_type)
    assert found.outcome is ToolOutcome.ERROR
    assert list(found.result) == ["error"]
    return str(found.result["error"])


class TestSuccess:
    @pytest.mark.parametrize(
        ("body", "content_type", "expected"),
        [
            ('{"items": [1]}', "application/json", {"items": [1]}),
            ('{"items": [1]}', "application/vnd.api+json; charset=utf-8", {"items": [1]}),
            ('{"items": [1]}', "text/html; charset=UTF-8", {"items": [1]}),
            ('{"items": [1]}', None, {"items": [1]}),
            (b'\xef\xbb\xbf{"a": "\xc3\xa9"}', "application/json", {"a": "é"}),
            ('{"a": "é"}'.encode("utf-16"), "application/json", {"a": "é"}),
            ('{"a": "é"}'.encode("latin-1"), "application/json; charset=iso-8859-1", {"a": "é"}),
            ('{"a": "é"}'.encode("latin-1"), "application/json", {"a": "é"}),
            ("こんにちは".encode("shift_jis"), "text/plain; charset=Shift_JIS", {"content": "こんにちは"}),
            (b"caf\xe9", "text/plain; charset=utf-8", {"content": "caf\ufffd"}),
            ("plain words", "text/plain", {"content": "plain words"}),
            ("42", "text/plain", {"content": "42"}),
            ("<p>Hello</p>", "text/html", {"content": "<p>Hello</p>"}),
            ("{broken", "application/json", {"content": "{broken"}),
            ("x", "text/plain; charset=unicode_escape", {"content": "x"}),
            ("x", "text/plain; charset=hex", {"content": "x"}),
            ("x", "text/plain; charset=no-such", {"content": "x"}),
            (b"\x89PNG\x00\xff", "image/png", {"content": "(image/png, 6 bytes)"}),
            ('"just text"', "application/json", "just text"),
            ("42", "application/json", 42),
            ("[1, 2]", "application/json", [1, 2]),
            ("null", "application/json", None),
            ("", "application/json", {"ok": True}),
            ("", None, {"ok": True}),
            (" \r\n", "text/plain", {"ok": True}),
            (b"\xef\xbb\xbf", "application/json", {"ok": True}),
            ('{"error": "none found"}', "application/json", {"error": "none found"}),
        ],
    )
    def test_json_is_the_result_other_text_is_content_and_nothing_is_ok(
        self, body: bytes | str, content_type: str | None, expected: Any
    ) -> None:
        found = read(body, 200, content_type)
        assert (found.result, found.outcome, found.status) == (expected, ToolOutcome.OK, 200)

    @pytest.mark.parametrize("status", [200, 201, 203, 204, 206, 226])
    def test_every_2xx_but_202_is_a_success(self, status: int) -> None:
        assert read("", status).result == {"ok": True}

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ('{"x": NaN, "y": [Infinity, -Infinity, 1e999]}', {"x": None, "y": [None, None, None]}),
            ('{"a\\u0000": "b\\u0000c"}', {"a": "bc"}),
            ('{"a": "\\ud83d", "b": "\\ud83d\\ude00"}', {"a": "\ufffd", "b": "😀"}),
            ('{"a": 1, "a": 2}', {"a": 2}),
            ('{"a": ' + "9" * 5000 + "}", {"a": None}),
            ('{"a": 18446744073709551616}', {"a": 1.8446744073709552e19}),
        ],
    )
    def test_what_nobody_could_store_or_send_on_is_mended(self, body: str, expected: Any) -> None:
        found = read(body)
        assert found.result == expected
        assert json.dumps(found.result, allow_nan=False).encode()

    @pytest.mark.parametrize("levels", [65, 900, 2_000, 100_000])
    def test_what_nests_deeper_than_64_is_a_failure(self, levels: int) -> None:
        for body in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
            found = read(body)
            assert (found.result, found.outcome) == (UNAVAILABLE, ToolOutcome.FAILED)
            assert "nested deeper" in (found.cause or "")
        assert read("[" * 64 + "]" * 64).outcome is ToolOutcome.OK

    def test_brackets_that_are_no_json_are_a_failure_too_since_nobody_can_tell(self) -> None:
        assert read("[" * 100_000).outcome is ToolOutcome.FAILED

    def test_of_an_answer_that_the_result_comes_later_nothing_else_is_read(self) -> None:
        found = read('{"items": [1]}', 202)
        assert (found.result, found.outcome, found.status) == (None, ToolOutcome.NEUTRAL, 202)


class TestRefusals:
    @pytest.mark.parametrize("status", [400, 404, 409, 422])
    def test_400_404_409_and_422_are_told_to_the_model(self, status: int) -> None:
        assert refusal({"error": "No such city."}, status) == "No such city."
        assert refusal("", status) == f"The tool find refused the call ({status})."

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({"error": "No such city."}, "No such city."),
            ({"message": "No such city."}, "No such city."),
            ({"detail": "No such city."}, "No such city."),
            ({"errors": ["No such city.", "No such date."]}, "No such city.; No such date."),
            ({"error": "first told", "message": "second told"}, "first told"),
            ({"error": {"code": "x", "message": "No such city."}}, "No such city."),
            ({"error": None, "message": "No such city."}, "No such city."),
            ({"error": True, "message": "No such city."}, "No such city."),
            ({"statusCode": 400, "message": ["a is bad", "b"], "error": "Bad Request"}, "Bad Request: a is bad; b"),
            ({"error": "invalid_city", "message": "No such city."}, "invalid_city: No such city."),
            (
                {"message": "The data was invalid.", "errors": {"city": ["Is required.", "Is short."], "max": ["No."]}},
                "The data was invalid. city: Is required.; Is short.; max: No.",
            ),
            (
                {"detail": [{"type": "missing", "loc": ["body", "city"], "msg": "Field required", "input": {}}]},
                "body.city: Field required",
            ),
            (
                {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "No city 7.", "instance": "/x"},
                "No city 7.",
            ),
            ({"type": "https://x.test/e", "title": "Out of stock", "status": 409}, "Out of stock"),
            (
                {"errors": [{"title": "Bad", "detail": "Is short", "source": {"pointer": "/data/city"}}]},
                "/data/city: Is short",
            ),
            ("No such city.", "No such city."),
            (["a", "b"], "a; b"),
        ],
    )  # fmt: skip
    def test_the_text_is_found_where_frameworks_put_it(self, body: Any, expected: str) -> None:
        assert refusal(json.dumps(body)) == expected

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            ("No such city.", "text/plain"),
            ("No such city.\n", "text/html; charset=UTF-8"),
            ("No such city.", None),
            ('"No such city."', "application/json"),
        ],
    )
    def test_a_plain_text_is_that_text(self, body: str, content_type: str | None) -> None:
        assert refusal(body, 404, content_type) == "No such city."

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            ("<!DOCTYPE html><html><body>Not found</body></html>", "text/html"),
            ("<html><h1>404</h1></html>", "text/plain"),
            ("<?xml version='1.0'?><e/>", "application/xml"),
            ({}, "application/json"),
            ({"error": ""}, "application/json"),
            ({"error": "<html>oops</html>"}, "application/json"),
            ({"code": 17}, "application/json"),
            ({"type": "about:blank", "title": "Not Found", "status": 404}, "application/problem+json"),
            ("null", "application/json"),
            ("false", "application/json"),
            (" ", "text/plain"),
        ],
    )
    def test_without_a_usable_text_it_is_a_plain_sentence(self, body: Any, content_type: str) -> None:
        assert refusal(body, 404, content_type) == "The tool find refused the call (404)."

    def test_it_is_at_most_2000_characters(self) -> None:
        for body in ({"error": "é" * 5000}, {"errors": {f"field{n}": ["x" * 500] for n in range(500)}}):
            text = refusal(body)
            assert len(text) == 2000
            assert text.endswith("…")
        assert refusal({"error": "x" * 2000}) == "x" * 2000
        assert len(refusal("y" * 3000, 400, "text/plain")) == 2000

    def test_a_body_that_nests_without_end_is_no_text(self) -> None:
        body: Any = "x"
        for _ in range(60):
            body = {"error": body}
        assert refusal(body) == "The tool find refused the call (422)."
        assert read("[" * 100_000, 422).outcome is ToolOutcome.FAILED


class TestWhatOnlyPeopleCanMend:
    @pytest.mark.parametrize("status", [300, 401, 402, 403, 405, 406, 408, 410, 413, 415, 418, 429, 451, 500, 501, 505, 599])
    def test_the_model_reads_one_sentence_and_the_rest_is_for_log_and_trace(self, status: int) -> None:
        found = read({"message": "database on db-7 is down"}, status)
        assert (found.result, found.outcome, found.status) == (UNAVAILABLE, ToolOutcome.FAILED, status)
        assert f"answered {status}" in (found.cause or "")
        assert "db-7" in (found.cause or "")

    def test_a_long_page_is_cut_in_the_cause(self) -> None:
        assert len(read("x " * 100_000, 500, "text/html").cause or "") < 600
