"""What a storm left, seen from outside only: answers, streams, webhook and model logs. The judge has nothing else."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.faults.clients import Seen
from tests.faults.faults import Fault
from tests.faults.outside import Asked, Delivery
from tests.faults.plans import Plan


@dataclass
class RunStory:
    """One run: what was planned, what its clients saw, and how it looks afterwards."""

    plan: Plan
    id: str = ""
    session_id: str | None = None
    streams: list[list[Seen]] = field(default_factory=list)
    """What each follower collected."""
    connections: int = 0
    refusals: list[str] = field(default_factory=list)
    """Answers that a follower or the caller did not deserve."""
    cancelled: dict[str, Any] | None = None
    """What the answer to a cancel said."""
    decided_at: dict[str, float] = field(default_factory=dict)
    """When the first decision about a call was sent, by the monotonic clock."""
    is_late: bool = False
    """It had not ended within the limit."""
    run: dict[str, Any] = field(default_factory=dict)
    """As `GET /v1/runs/{id}` shows it in the end."""
    fresh: list[Seen] = field(default_factory=list)
    """What a new follower gets in the end."""
    trace: list[dict[str, Any]] = field(default_factory=list)

    @property
    def recoveries(self) -> int:
        return sum(event.type == "run.resumed" and event.data["reason"] == "recovered" for event in self.fresh)


@dataclass
class Evidence:
    seed: int
    stories: list[RunStory]
    deliveries: list[Delivery]
    asked: list[Asked]
    messages: dict[str, list[dict[str, Any]]]
    """By session, oldest first."""
    listed: list[dict[str, Any]]
    """All runs that the API lists."""
    stuck: dict[str, str]
    """Sessions that completed no further run, and why."""
    faults: list[Fault] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    """What the processes logged, by event."""
    ends: Counter[str] = field(default_factory=Counter)
    last_words: list[str] = field(default_factory=list)
    """The end of the log of each process that ended by itself."""
    """Processes that ended by themselves, or did not end when told to."""
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest start and the longest end of a process."""
    refused_writes: float = 0.0
    unforeseen: list[str] = field(default_factory=list)
    repeated: int = 0
    seconds: float = 0.0
