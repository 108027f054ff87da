"""Compares what one follower collected with what a new one gets afterwards."""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from tests.faults.clients import DELTAS, ENDS, Seen


def compare(seen: list[Seen], told: list[Seen]) -> Iterator[tuple[str, str]]:
    """Kinds and texts of what differs though it must not. Only deltas may differ, and only in how they are cut."""
    ids = [event.id for event in seen if event.id is not None]
    doubled = [(one, other) for one, other in pairwise(ids) if other <= one]
    if doubled:
        yield "doubled event", f"ids that do not rise: {doubled}"
    if any(event.id is None and event.type != "message.discarded" for event in seen):
        yield "doubled event", "an event without an id"
    ends = [event for event in seen if event.type in ENDS]
    if len(ends) != 1 or seen[-1] is not ends[0]:
        yield "wrong terminal event", f"{ends} in {len(seen)} events"
    yield from _same(_by_id(seen), _by_id(told))
    yield from _texts(seen)


def _by_id(events: list[Seen]) -> dict[int, Seen]:
    return {event.id: event for event in events if event.id is not None}


def _same(seen: dict[int, Seen], told: dict[int, Seen]) -> Iterator[tuple[str, str]]:
    lost = [event for number, event in told.items() if event.type not in DELTAS and number not in seen]
    if lost:
        yield "lost event", f"never came: {lost}"
    extra = [event for number, event in seen.items() if event.type not in DELTAS and number not in told]
    if extra:
        yield "event of nobody", f"nobody else was told: {extra}"
    for number in seen.keys() & told.keys():
        one, other = seen[number], told[number]
        if one.type != other.type or (one.type not in DELTAS and shown(one) != shown(other)):
            yield "two events with one id", f"{one}: {one.data} and {other}: {other.data}"


def shown(event: Seen) -> dict[str, Any]:
    """An event without the moment it was shown."""
    return {**event.data, "at": ""}


def _texts(seen: list[Seen]) -> Iterator[tuple[str, str]]:
    """The deltas of a message, after what was discarded of it, are its text."""
    texts: dict[str, str] = {}
    for event in seen:
        match event.type:
            case "message.delta":
                texts[event.data["message_id"]] = texts.get(event.data["message_id"], "") + event.data["text"]
            case "message.discarded":
                texts.pop(event.data["message_id"], None)
            case "message.completed":
                message = event.data["message"]
                text = texts.pop(message["id"], "")
                if text != message["content"]:
                    yield "wrong text", f"{message['id']}: the deltas say {text!r}, the message {message['content']!r}"


def short(events: list[Seen]) -> str:
    """A list for people, with deltas that follow each other as one."""
    parts: list[str] = []
    for is_delta, group in groupby(events, lambda event: event.type in DELTAS):
        own = list(group)
        if is_delta and len(own) > 1:
            parts.append(f"{own[0].id}-{own[-1].id}:{own[0].type} ({len(own)})")
        else:
            parts += map(repr, own)
    return ", ".join(parts)
