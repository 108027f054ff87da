"""What a tool may be given: real values, tokens, or nothing that stands for a value."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.redaction.labels import Label
from app.redaction.restorer import restore_json
from app.redaction.vault import Vault

_HELD_BACK = frozenset({str(Label.KEY), str(Label.CARD)})


class Mode(StrEnum):
    """What becomes of tokens in arguments whose label is not in `allow`."""

    RESTORE = "restore"
    """Real values, but a call with a key or a card is not made."""

    TOKENS = "tokens"
    """The tool gets the tokens."""

    REFUSE = "refuse"
    """A call with one is not made."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """`allow` are labels that this tool is given in any mode."""

    arguments: Mode = Mode.RESTORE
    allow: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is not to be made; `reason` is for the model and holds no value."""

    reason: str


def opened_arguments(arguments: dict[str, Any], vault: Vault, policy: ToolPolicy) -> dict[str, Any] | Refused:
    """The arguments as the tool is to get them; to be checked against its schema after this, not before."""
    restored = restore_json(arguments, vault)
    if restored.unknown:
        names = ", ".join(restored.unknown[:5])
        return Refused(f"{names} stands for no value. Use only marks that appear in this conversation, copied exactly.")
    if restored.clash:
        return Refused("Two keys of one object in the arguments stand for the same value.")
    guarded = restored.labels - policy.allow - {str(Label.LIT)}
    if policy.arguments is Mode.TOKENS and guarded:
        return _partly(arguments, vault, policy)
    held_back = guarded if policy.arguments is Mode.REFUSE else guarded & _HELD_BACK
    if held_back:
        return Refused(
            f"This tool may not be given values of the kind {', '.join(sorted(held_back))}. The call was not made."
        )
    value: dict[str, Any] = restored.value
    return value


def _partly(arguments: dict[str, Any], vault: Vault, policy: ToolPolicy) -> dict[str, Any]:
    """Only labels that the tool is allowed, and literal text, are restored."""
    value: dict[str, Any] = restore_json(arguments, _Allowed(vault, policy.allow | {str(Label.LIT)})).value
    return value


class _Allowed:
    """A vault that knows the values of some labels only."""

    def __init__(self, vault: Vault, allowed: frozenset[str]) -> None:
        self._vault = vault
        self.labels = vault.labels
        self._allowed = allowed
        self.token_for = vault.token_for
        self.retire = vault.retire

    def value_of(self, token: Any) -> str | None:
        return self._vault.value_of(token) if token.label in self._allowed else None
