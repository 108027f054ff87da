"""What a note can be: closed sets that tables, ranking and admission share. Pure."""

from enum import StrEnum

MIN_CHARS, MAX_CHARS = 3, 400
"""Of a note's content, after `one_line`."""


class Kind(StrEnum):
    PREFERENCE = "preference"
    FACT = "fact"
    DECISION = "decision"
    EVENT = "event"
    PROCEDURE = "procedure"


class Status(StrEnum):
    ACTIVE = "active"
    PENDING = "pending"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"


class Source(StrEnum):
    """Drawn from a conversation, or written by a person over the API."""

    DISTILLED = "distilled"
    API = "api"
