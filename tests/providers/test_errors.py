"""What a provider says went wrong is sorted by who can do something about it."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from app.providers.client import ProviderErrorKind
from app.providers.errors import http_error, in_band_error, is_context_overflow, retry_after_seconds

UNAVAILABLE, REJECTED, AUTH, OVERFLOW = (
    ProviderErrorKind.UNAVAILABLE,
    ProviderErrorKind.REJECTED,
    ProviderErrorKind.AUTH,
    ProviderErrorKind.OVERFLOW,
)


def error_of(status: int, body: object, **headers: str):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return http_error(status, named, raw, ("s3cr3t-k3y",))


class TestContextOverflow:
    """C16: the prompt is too long, in the words of many servers."""

    @pytest.mark.parametrize(
        ("status", "code", "message"),
        [
            (400, "context_length_exceeded", "Too much."),
            (400, "exceed_context_size_error", "the request exceeds the available context size, try increasing it"),
            (400, None, "Input length (265330) exceeds model's maximum context length (262144)."),
            (400, None, "prompt is too long: 2113402 tokens > 1000000 maximum"),
            (400, None, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001."),
            (400, None, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
            (400, None, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
            (400, None, "Invalid request: Your request exceeded model token limit: 8192"),
            (400, None, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
            (400, None, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
            (None, None, "Input is too long for requested model."),
            (429, None, "Rate limit hit: maximum context length is 128000 tokens, the request holds 130500 tokens"),
            (413, None, "Request Entity Too Large"),
            (400, None, "Range of input length should be [1, 30720]"),
            (400, None, "Please reduce the length of the messages or completion."),
            (500, None, "the input length exceeds the context length"),
        ],
    )
    def test_is_known_in_many_disguises(self, status, code, message):
        assert is_context_overflow(status, code, message)

    @pytest.mark.parametrize(
        ("status", "code", "message"),
        [
            (429, None, "Too many tokens, please wait before trying again."),
            (
                429,
                "rate_limit_exceeded",
                "Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000",
            ),
            (413, "rate_limit_exceeded", "Request too large on tokens per minute (TPM): Limit 6000, Requested 7000"),
            (429, None, "You exceeded your current quota, please check your plan and billing details."),
            (400, None, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."),
            (429, None, "Too many requests"),
            (401, None, "maximum context length"),
            (400, None, "Invalid schema for function 'f'."),
            (503, None, "The model is overloaded. Please try again later."),
        ],
    )
    def test_is_not_read_into_throttling_and_other_errors(self, status, code, message):
        assert not is_context_overflow(status, code, message)


class TestKinds:
    @pytest.mark.parametrize("status", [402, 408, 409, 425, 429, 500, 502, 503, 504, 529])
    def test_what_may_pass_by_itself_is_unavailable(self, status):
        assert error_of(status, {"error": {"message": "no"}}).kind is UNAVAILABLE

    @pytest.mark.parametrize("status", [301, 400, 404, 405, 410, 418, 422])
    def test_what_the_caller_must_change_is_rejected(self, status):
        assert error_of(status, {"error": {"message": "no"}}).kind is REJECTED

    @pytest.mark.parametrize("status", [401, 403])
    def test_refused_credentials(self, status):
        assert error_of(status, {}).kind is AUTH

    @pytest.mark.parametrize("status", [400, 402, 403, 429])
    def test_used_up_credits_are_unavailable_under_any_status(self, status):
        assert error_of(status, {"error": {"code": "insufficient_quota", "message": "x"}}).kind is UNAVAILABLE
        assert error_of(status, {"error": {"message": "Your credit balance is too low."}}).kind is UNAVAILABLE

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"message": "quota exceeded", "code": None}, UNAVAILABLE),
            ({"message": "slow down", "code": 429}, UNAVAILABLE),
            ({"message": "bad", "code": "400"}, REJECTED),
            ({"message": "bad", "type": "invalid_request_error"}, REJECTED),
            ({"message": "key", "code": "invalid_api_key"}, AUTH),
            ({"type": "overloaded_error", "message": "Overloaded"}, UNAVAILABLE),
            ({"message": "Provider returned error", "metadata": {"raw": "prompt is too long"}}, OVERFLOW),
            ({"code": "context_length_exceeded", "type": "invalid_request_error"}, OVERFLOW),
            ("something broke", UNAVAILABLE),
            ({}, UNAVAILABLE),
            ([], UNAVAILABLE),
            (7, UNAVAILABLE),
        ],
    )
    def test_errors_inside_a_stream(self, error, kind):
        assert in_band_error(error).kind is kind


class TestMessages:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"error": {"message": "No such model."}}, "No such model."),
            ({"error": "flat text"}, "flat text"),
            ({"message": "plain"}, "plain"),
            ([{"error": {"message": "in a list"}}], "in a list"),
            ({"detail": [{"msg": "field required"}]}, "field required"),
            (b"upstream failure", "upstream failure"),
            (b"<html>nginx</html>", ""),
            (b"[" * 100_000, ""),
            (b"", ""),
        ],
    )
    def test_the_words_are_found_in_any_shape(self, body, said):
        message = error_of(400, body).message
        assert said in message
        assert "html" not in message

    def test_they_are_bounded_and_without_secrets(self):
        message = error_of(
            400, {"error": {"message": "key s3cr3t-k3y, sk-abc123def456 Bearer xyz " + "long " * 500}}
        ).message
        assert len(message) < 600
        for secret in ("s3cr3t", "sk-abc", "xyz"):
            assert secret not in message

    def test_a_refused_key_is_not_spoken_of(self):
        assert error_of(401, {"error": {"message": "Incorrect API key: abcdef"}}).message.endswith("(401).")


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"retry-after": "7"}, 7.0),
            ({"retry-after": "0.5"}, 0.5),
            ({"retry-after": "-3"}, 0.0),
            ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
            ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, 30.0),
            ({"retry-after": "Wed, 21 Oct 2026 07:00:00 GMT"}, 0.0),
            ({"retry-after": "soon"}, None),
            ({"retry-after": "inf"}, None),
            ({}, None),
        ],
    )
    def test_seconds_milliseconds_and_dates(self, headers, seconds):
        now = datetime(2026, 10, 21, 7, 28, tzinfo=UTC)
        assert retry_after_seconds(httpx.Headers(headers), now) == seconds
