"""What Claude models take, told from their names, since the API refuses what a model does not know.

A name that is no Claude's belongs to another server that speaks this format: it is asked as the older models are.
"""

import re
from typing import Any, NamedTuple

MIN_BUDGET = 1024
"""The least thinking, in tokens, that the API takes."""

_VERSION = re.compile(r"claude-(?:[a-z]+-)*(\d+)(?:[.-](\d{1,2})(?!\d))?")
_NEWEST = (99, 0)
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 6144, "high": 12_288, "xhigh": 15_360, "max": 15_360}
_EFFORTS = {"minimal": "low", "xhigh": "high"}


class Model(NamedTuple):
    """`version` is None for a model that is no Claude; a Claude without a number in its name counts as the newest."""

    version: tuple[int, int] | None

    @property
    def decides_how_much_to_think(self) -> bool:
        """Whether thinking takes an effort in the place of a budget, and no turn must begin with it."""
        return self.version is not None and self.version >= (4, 6)

    @property
    def samples_by_itself(self) -> bool:
        """Whether `temperature`, `top_p` and `top_k` are refused."""
        return self.version is not None and self.version >= (4, 7)

    @property
    def takes_schema(self) -> bool:
        """Whether the answer can be held to a JSON schema."""
        return self.version is not None and self.version >= (4, 5)

    @property
    def max_tokens(self) -> int:
        """How much it may write where the caller did not say; the API has no default."""
        if self.version is None:
            return 8192
        if self.version < (3, 5):
            return 4096
        if self.version < (3, 7):
            return 8192
        return 32_768 if self.decides_how_much_to_think else 16_384

    def effort(self, wanted: str) -> str:
        """The nearest level of effort that it knows."""
        if wanted == "xhigh" and self.samples_by_itself:
            return wanted
        return _EFFORTS.get(wanted, wanted)


def model_of(name: str) -> Model:
    """What is known of a model by its name, in any of the spellings that servers give it."""
    found = _VERSION.search(name)
    if found:
        return Model((int(found[1]), int(found[2] or 0)))
    return Model(_NEWEST if "claude" in name else None)


def thinking_budget(effort: Any) -> int:
    """Tokens of thinking for an effort; a number is a budget itself."""
    if isinstance(effort, int) and not isinstance(effort, bool):
        return max(effort, MIN_BUDGET)
    return _BUDGETS.get(str(effort), _BUDGETS["medium"])
