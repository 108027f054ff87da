"""Which events say the same, and which deltas are pieces of one text."""

from app.loop.events import (
    Event,
    GuardHint,
    IterationCompleted,
    IterationStarted,
    MessageDelta,
    ReasoningDelta,
    ToolInvoking,
)


def identify(event: Event) -> tuple[object, ...] | None:
    """What makes two events the same, for those that a resumed run comes by again."""
    match event:
        case IterationStarted() | IterationCompleted():
            return (event.type, event.iteration)
        case ToolInvoking() | GuardHint():
            return (event.type, event.call_id)
        case _:
            return None


def identify_json(body: dict[str, object]) -> tuple[object, ...] | None:
    """The same for an event that is JSON."""
    match body["type"]:
        case IterationStarted.type | IterationCompleted.type:
            return (body["type"], body["iteration"])
        case ToolInvoking.type | GuardHint.type:
            return (body["type"], body["call_id"])
        case _:
            return None


def subject(event: MessageDelta | ReasoningDelta) -> object:
    """What a delta is a piece of."""
    return event.message_id if isinstance(event, MessageDelta) else ("reasoning", event.iteration)


def continues(earlier: Event | None, event: MessageDelta | ReasoningDelta) -> bool:
    """Whether a delta is the next piece of what an event is a piece of."""
    if isinstance(event, MessageDelta):
        return isinstance(earlier, MessageDelta) and earlier.message_id == event.message_id
    return isinstance(earlier, ReasoningDelta) and earlier.iteration == event.iteration
