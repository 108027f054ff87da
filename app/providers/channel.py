"""The texts of a reply, shown as they come: cleaned, and with reasoning in `<think>` tags told from the answer."""

from typing import Literal

from app.loop.cleaning import clean_text
from app.providers.client import Show

_OPENING = ("<think>", "<thinking>")
_CLOSING = ("</think>", "</thinking>")


class Channel:
    """One text. A NUL is dropped; a surrogate pair that came in two deltas is joined, a lone half becomes U+FFFD."""

    __slots__ = ("_half", "_kind", "_pieces", "_show")

    def __init__(self, kind: Literal["text", "reasoning"], show: Show) -> None:
        self._kind: Literal["text", "reasoning"] = kind
        self._show = show
        self._pieces: list[str] = []
        self._half = ""

    def add(self, text: str) -> None:
        if self._half or not text.isascii() or "\x00" in text:
            text = self._half + text
            self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
            text = clean_text(text[: len(text) - len(self._half)])
        if text:
            self._pieces.append(text)
            self._show(self._kind, text)

    def end(self) -> str:
        """The whole text."""
        if self._half:
            self._half = ""
            self._pieces.append("\ufffd")
            self._show(self._kind, "\ufffd")
        return "".join(self._pieces)


class ThinkTags:
    """Tells reasoning from the answer where a model writes both into its content.

    Only tags at the start count: later ones are the model's text. `prefilled` means that the server's template already
    opened the reasoning, so that only the closing tag comes. What is never closed is all reasoning.
    """

    __slots__ = ("_answer", "_held", "_reasoning", "_state")

    def __init__(self, answer: Channel, reasoning: Channel, *, prefilled: bool) -> None:
        self._answer, self._reasoning = answer, reasoning
        self._held = ""
        self._state: Literal["start", "prefilled", "thinking", "thought", "answer"] = "prefilled" if prefilled else "start"

    def add(self, text: str) -> None:
        if self._state == "answer":
            self._answer.add(text)
            return
        text, self._held = self._held + text, ""
        if self._state in ("start", "prefilled"):
            text = self._after_opening(text)
        if self._state == "thinking" and text:
            text = self._after_thoughts(text)
        if self._state == "thought" and (text := text.lstrip()):
            self._state = "answer"
        if self._state == "answer" and text:
            self._answer.add(text)

    def end(self) -> None:
        """Let go of what could still have become a tag."""
        held, self._held = self._held, ""
        if held:
            (self._answer if self._state in ("start", "answer") else self._reasoning).add(held)

    def _after_opening(self, text: str) -> str:
        begin = text.lstrip()
        for tag in _OPENING:
            if begin.startswith(tag):
                self._state = "thinking"
                return begin.removeprefix(tag)
        if any(tag.startswith(begin) for tag in _OPENING):
            self._held = text
            return ""
        self._state = "answer" if self._state == "start" else "thinking"
        return text

    def _after_thoughts(self, text: str) -> str:
        """Show the thoughts; give what follows the closing tag."""
        found = [(at, tag) for tag in _CLOSING if (at := text.find(tag)) >= 0]
        if found:
            at, tag = min(found)
            self._think(text[:at])
            self._state = "thought"
            return text[at + len(tag) :]
        begun = text.rfind("<")
        if begun >= 0 and any(tag.startswith(text[begun:]) for tag in _CLOSING):
            text, self._held = text[:begun], text[begun:]
        self._think(text)
        return ""

    def _think(self, text: str) -> None:
        if text:
            self._reasoning.add(text)
