"""How much a model takes, and by which vocabulary its tokens are counted."""

import pytest

from app.providers.tokens import count_tokens, cut_to_tokens, vocabulary_of
from app.providers.windows import window_of

pytestmark = pytest.mark.usefixtures("vocabulary")


class TestWindows:
    @pytest.mark.parametrize(
        ("model", "tokens"),
        [
            ("openai/gpt-5-mini", 400_000), ("openai/gpt-4o", 128_000), ("openai/gpt-4", 8192),
            ("openai/gpt-4.1", 1_047_576), ("openai/gpt-4-turbo", 128_000), ("openai/o3-mini", 200_000),
            ("anthropic/claude-sonnet-4-5", 200_000),
            ("router/openai/gpt-4o-mini", 128_000), ("lab/Llama-3.3-70B", 131_072), ("lab/llama3-8b", 8192),
            ("lab/nobody-knows", 50_000), ("scripted/test", 50_000),
        ],
    )  # fmt: skip
    def test_it_is_told_from_the_name(self, model: str, tokens: int) -> None:
        assert window_of(model, {}, 50_000).tokens == tokens

    def test_an_option_states_it(self) -> None:
        assert window_of("openai/gpt-5", {"context_window": 9000}, 1).tokens == 9000

    def test_room_is_kept_for_the_answer_and_never_more_than_half(self) -> None:
        assert window_of("openai/gpt-4o", {"max_output_tokens": 1000}, 1).room == 127_000
        assert window_of("openai/gpt-4", {"max_tokens": 100_000}, 1).room == 4096
        assert window_of("anthropic/claude-sonnet-4-5", {}, 1).reserve == 16_384


class TestVocabularies:
    @pytest.mark.parametrize(
        ("model", "older"),
        [("openai/gpt-4", True), ("openai/gpt-4-turbo", True), ("openai/gpt-3.5-turbo", True), ("azure/gpt-35-turbo", True),
         ("openai/gpt-4o", False), ("openai/gpt-4.1", False), ("openai/gpt-5", False), ("openai/o1", False),
         ("anthropic/claude-sonnet-4-5", False)],
    )  # fmt: skip
    def test_each_model_is_counted_by_its_own(self, model: str, older: bool) -> None:
        assert vocabulary_of(model) == ("cl100k_base" if older else "o200k_base")

    def test_the_two_differ(self) -> None:
        text = "¿Dónde está la biblioteca? 東京都 Καλημέρα"
        assert count_tokens(text) != count_tokens(text, "cl100k_base")

    def test_special_tokens_are_plain_text(self) -> None:
        assert count_tokens("<|endoftext|>") > 1

    def test_a_cut_text_never_has_more_than_it_may(self) -> None:
        for limit in range(1, 12):
            assert count_tokens(cut_to_tokens("日本語のテキスト。😀 " * 20, limit)) <= limit + 2
