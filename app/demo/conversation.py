"""What is asked, and what the scripted model makes of it: it errs where models err, so that one sees what happens then."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_DELAY_MS = 50
_CHUNK_CHARS = 4
_PAUSE_MS = 1_000
_USAGE = ({"input_tokens": 412, "output_tokens": 31}, {"input_tokens": 506, "output_tokens": 29},
          {"input_tokens": 611, "output_tokens": 68})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """`script` is what a scripted model answers, and `title` what happens then; a real one has its own mind."""

    topic: str
    title: str
    question: str
    script: list[dict[str, Any]]


def system_prompt() -> str:
    return (
        "You are the assistant of an estate agency in Spain. Look things up with your tools before you answer, one city "
        "at a time. Say only what the results say, name property ids, and be short, in plain text. When a request is "
        f"clear, act without asking back. Now it is {_now():%A, %Y-%m-%dT%H:%M}."
    )


def turns() -> list[Turn]:
    """The conversation, in order, in one session. The viewing is next week or so, whenever the demo is played."""
    viewing = _next_tuesday()
    return [
        Turn(
            "A search",
            "A bad argument, corrected",
            "Is there a flat in Valencia with two bedrooms for at most 300,000 euros?",
            _script(
                ("list_properties", {"city": "Valencia", "price_max": "300k", "bedrooms": 2}),
                ("list_properties", {"city": "Valencia", "price_max": 300_000, "bedrooms": 2}),
                "Yes, two fit. V-102 in Ruzafa has two bedrooms and costs 265,000 euros; V-107 in Benimaclet has three "
                "and costs 289,000. Shall I book a viewing?",
                first_words="Let me look.",
            ),
        ),
        Turn(
            "A hard search",
            "Two dead searches, and the guard",
            "My sister looks in Galicia. Is there anything in Vigo, or else in Pontevedra, for at most 150,000?",
            _script(
                ("list_properties", {"city": "Vigo", "price_max": 150_000}),
                ("list_properties", {"city": "Pontevedra", "price_max": 150_000}),
                "No. I searched Vigo and Pontevedra up to 150,000 euros, and there is nothing in either. Another city or "
                "a higher price may help; I will not guess.",
            ),
        ),
        Turn(
            "A viewing",
            "A refused call, corrected",
            f"Then book me a viewing of V-102, please, on {viewing:%A, %B} {viewing.day} at ten in the morning.",
            _script(
                # The year before, on the same day of the week: models like to live in the past.
                ("schedule_viewing", {"property_id": "V-102", "when": f"{viewing - timedelta(days=364):%Y-%m-%dT%H:%M}"}),
                ("schedule_viewing", {"property_id": "V-102", "when": f"{viewing:%Y-%m-%dT%H:%M}"}),
                f"It is booked: V-102 in Ruzafa, on {viewing:%A, %B} {viewing.day}, {viewing.year}, at 10:00.",
            ),
        ),
    ]


def to_paste() -> Turn:
    """A short one for a person to start from the command line. Without apostrophes, which end a shell's quotes."""
    script = [
        _calling("list_properties", {"city": "Alicante", "price_max": 200_000}),
        _saying("Yes: A-031 in San Juan, with two bedrooms, for 179,000 euros."),
    ]
    return Turn("", "", "Is there anything in Alicante for at most 200,000?", script)


def _script(
    wrong: tuple[str, dict[str, Any]], right: tuple[str, dict[str, Any]], answer: str, first_words: str = ""
) -> list[dict[str, Any]]:
    turns = [_calling(*wrong), _calling(*right), _saying(answer)]
    if first_words:
        turns[0] |= _saying(first_words)
    return [{**turn, "usage": usage} for turn, usage in zip(turns, _USAGE, strict=True)]


def _calling(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}], "delay_ms": _PAUSE_MS}


def _saying(text: str) -> dict[str, Any]:
    return {"text": text, "delay_ms": _DELAY_MS, "chunk_chars": _CHUNK_CHARS}


def _now() -> datetime:
    return datetime.now(UTC).astimezone()


def _next_tuesday() -> datetime:
    """The first one that is at least two days away, at ten."""
    day = _now() + timedelta(days=2)
    day += timedelta(days=(1 - day.weekday()) % 7)
    return day.replace(hour=10, minute=0, second=0, microsecond=0)
