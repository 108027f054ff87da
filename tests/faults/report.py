"""The counts of a storm, for people."""

from collections import Counter
from datetime import datetime
from itertools import pairwise

from tests.faults.clients import Seen
from tests.faults.evidence import Evidence, RunStory
from tests.faults.judge import Objection

STALE = ("run_lost", "run_taken_over", "event_log_refused")
"""What a process logs when a write of it was refused, since another one owned the run."""
ZEROS = (
    ("doubled webhooks after a stored result", ("doubled webhook", "doubled at_most_once webhook", "changed webhook")),
    ("repeated model calls after a stored reply", ("repeated model call",)),
    (
        "lost or doubled events",
        ("lost event", "doubled event", "event of nobody", "two events with one id", "wrong text", "wrong terminal event"),
    ),
    ("stuck sessions", ("stuck session",)),
    ("lost, doubled or late runs", ("lost run", "late run", "two runs of one key")),
)


def report(evidence: Evidence, objections: list[Objection]) -> str:
    kinds = Counter(objection.kind for objection in objections)
    stories = evidence.stories
    statuses = Counter(story.run.get("status", "?") for story in stories)
    longest = max(((seconds, story.id) for story in stories for seconds in recovery_seconds(evidence, story)), default=None)
    faults = Counter(fault.kind for fault in evidence.faults)
    places = Counter(f"{fault.kind} {fault.what}" for fault in evidence.faults)
    lines = [
        f"storm with seed {evidence.seed}, {evidence.seconds:.0f} s",
        f"  runs: {len(stories)} ({_listed(statuses)}), events: {sum(len(story.fresh) for story in stories)}",
        f"  streams: {sum(len(story.streams) for story in stories)} over"
        f" {sum(story.connections for story in stories)} connections, webhooks: {len(evidence.deliveries)},"
        f" model requests: {len(evidence.asked)}, requests repeated: {evidence.repeated}",
        f"  faults: {_listed(faults)}",
        *(f"    {place}: {count}" for place, count in sorted(places.items())),
        f"  recoveries: {sum(story.recoveries for story in stories)}, the longest took "
        + ("none" if longest is None else f"{longest[0]:.1f} s with the lease ({longest[1]})"),
        f"  refused to stale owners: {_listed(Counter({name: evidence.told[name] for name in STALE}))},"
        f" by the metric {evidence.refused_writes:.0f}",
        f"  processes: {_listed(evidence.ends) or 'each ended only when told to'}"
        + "".join(f", longest {what} {seconds:.1f} s" for what, seconds in evidence.longest.items()),
        *(f"    last words of {words}" for words in evidence.last_words),
        *(f"  {name} = {sum(kinds[kind] for kind in own)}" for name, own in ZEROS),
        f"  objections = {len(objections)}" + (f" ({_listed(kinds)})" if kinds else ""),
    ]
    return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def recovery_seconds(evidence: Evidence, story: RunStory) -> list[float]:
    """For each recovery of a run: from the first fault after the last event before it, up to `run.resumed`."""
    found: list[float] = []
    for before, event in pairwise(story.fresh):
        if event.type == "run.resumed" and event.data["reason"] == "recovered":
            last, resumed = moment(before), moment(event)
            start = min((fault.at for fault in evidence.faults if last <= fault.at <= resumed), default=last)
            found.append(resumed - start)
    return found


def moment(event: Seen) -> float:
    """When an event was shown, in seconds since the epoch."""
    return datetime.fromisoformat(event.data["at"]).timestamp()
