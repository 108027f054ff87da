"""What a person sees of the demo: events as lines, colours on a terminal that wants them."""

import json
import os
import re
import sys
from typing import Any, TextIO

from app.demo.agency import Agency

_MAX_LINE_CHARS = 180
_SHORT_SIGNATURE_CHARS = 20
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# What a model or a tool says must not steer the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Stage:
    """Prints at once, also into a pipe. `agency` tells which calls came to it and how they were signed."""

    def __init__(self, agency: Agency, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._agency = agency
        self._colourful = self._out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._speaking = False
        self.events = 0

    def line(self, text: str = "") -> None:
        self._end_speech()
        print(text, file=self._out, flush=True)

    def fact(self, label: str, text: str, colour: str | None = None) -> None:
        """One line with a word in front."""
        self.line(self._label(label, colour or "dim") + _CONTROLS.sub("", text))

    def heading(self, text: str) -> None:
        self.line()
        self.line(self._in("bold", text))

    def question(self, text: str) -> None:
        self.fact("user", text, "cyan")

    def show(self, event: dict[str, Any]) -> None:
        """An event of a run, if there is something in it for people."""
        self.events += 1
        match event["type"]:
            case "message.delta":
                self._speak(event["text"])
            case "message.discarded":
                self.fact("", "(the connection to the model broke; it says this anew)")
            case "tool.invoking":
                self.fact("calls", f"{event['tool']} {_short(event['arguments'])}", "cyan")
            case "tool.invoked":
                self._result(event)
            case "guard.hint":
                told = f"{event['streak']} results in a row found nothing: change the approach once, or say so plainly"
                self.fact("guard", f"hint to the model: {told}", "yellow")
            case "run.completed":
                self._end_speech()
            case "run.failed":
                self.fact("failed", f"{event['run']['error']['code']}: {event['run']['error']['message']}", "red")
            case "run.incomplete" | "run.cancelled":
                self.fact("ended", f"{event['run']['status']}: {event['run']['finish_reason']}", "red")

    def _result(self, event: dict[str, Any]) -> None:
        receipt = self._agency.receipts.get(event["call_id"])
        if receipt is not None:
            signature = receipt.signature[:_SHORT_SIGNATURE_CHARS]
            self.fact("signed", f"{event['call_id']} {signature}…  verified by the agency, answered {receipt.status}")
        outcome, result = event["outcome"], _short(event["result"])
        match outcome:
            case "invalid" | "unknown":
                self.fact("told", f"{result}  (not sent)", "yellow")
            case "error":
                self.fact("refused", result, "yellow")
            case "failed" | "denied" | "cancelled" | "skipped":
                self.fact(outcome, result, "red")
            case "empty":
                self.fact("nothing", result)
            case _:
                self.fact("result", result, "green")

    def _speak(self, text: str) -> None:
        if not self._speaking:
            self._out.write(self._label("model", "green"))
            self._speaking = True
        self._out.write(_CONTROLS.sub("", text).replace("\n", f"\n{'':12}"))
        self._out.flush()

    def _end_speech(self) -> None:
        if self._speaking:
            self._speaking = False
            print(file=self._out, flush=True)

    def _label(self, word: str, colour: str) -> str:
        return f"  {self._in(colour, f'{word:<9}')} "

    def _in(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colourful else text


def _short(value: Any) -> str:
    """As JSON on one line; a lone error as its text."""
    if isinstance(value, dict) and isinstance(value.get("error"), str) and len(value) == 1:
        text = value["error"]
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_LINE_CHARS else text[: _MAX_LINE_CHARS - 1] + "…"
