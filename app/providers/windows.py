"""How much a model takes at once: its context window, told from its name, and the part of it that its answer needs.

A name that is not known has `RONDO_DEFAULT_CONTEXT_WINDOW`. The model option `context_window` (of a run, or of a provider
of the workspace) states it; it is never sent on.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from app.providers.anthropic_models import model_of

OPTION = "context_window"
MIN_WINDOW = 200
_ANSWER_TOKENS = 4096
_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")

_WINDOWS: tuple[tuple[str, int], ...] = (
    (r"gpt-5(?!.*chat)", 400_000),
    (r"gpt-5.*chat", 128_000),
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-4\.5|gpt-4o|chatgpt-4o|gpt-4-turbo|gpt-4-(?:0125|1106)", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4(?![\w.])", 8192),
    (r"gpt-3\.5|gpt-35", 16_385),
    (r"gpt-oss", 131_072),
    (r"o1-mini|o1-preview", 128_000),
    (r"o[134](?![a-z0-9])", 200_000),
    (r"claude-2\.0|claude-instant", 100_000),
    (r"claude", 200_000),
    (r"gemini-1\.5-pro", 2_097_152),
    (r"gemini", 1_048_576),
    (r"llama-?3(?:[.-][123])", 131_072),
    (r"llama-?3", 8192),
    (r"llama-?4", 1_048_576),
    (r"mixtral|mistral-7b|open-mistral", 32_768),
    (r"mistral|ministral|magistral|devstral|codestral", 128_000),
    (r"deepseek", 65_536),
    (r"qwen2|qwen-?2\.5", 32_768),
    (r"qwen-?3", 131_072),
    (r"grok-4", 256_000),
    (r"grok", 131_072),
    (r"command-r|command-a", 128_000),
    (r"phi-?4", 16_384),
    (r"gemma-?3", 131_072),
    (r"gemma", 8192),
)
_KNOWN = [(re.compile(pattern, re.IGNORECASE), tokens) for pattern, tokens in _WINDOWS]


class Window(NamedTuple):
    """All of it, and what of it is kept free for the answer; both in tokens."""

    tokens: int
    reserve: int

    @property
    def room(self) -> int:
        """For everything that is sent."""
        return self.tokens - self.reserve


def window_of(model: str, options: Mapping[str, Any], default: int) -> Window:
    """The window of a model by its full name (`openai/gpt-5`), or what `options` says of it."""
    name = model.partition("/")[2]
    stated = options.get(OPTION)
    if isinstance(stated, int) and not isinstance(stated, bool):
        tokens = max(stated, MIN_WINDOW)
    else:
        short = name.rpartition("/")[2]
        tokens = next((known for pattern, known in _KNOWN if pattern.match(short)), default)
    return Window(tokens, min(_answer_tokens(name, options), tokens // 2))


def _answer_tokens(name: str, options: Mapping[str, Any]) -> int:
    for option in _LIMITS:
        limit = options.get(option)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    claude = model_of(name)
    return claude.max_tokens if claude.version is not None else _ANSWER_TOKENS
