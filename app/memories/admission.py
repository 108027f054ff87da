"""Which of the notes that a model proposes are kept. Pure: a proposal and what it is judged by, to a decision.

A model only ever proposes. It adds, confirms or supersedes, and never deletes; a note needs a user's own line as evidence;
what reads like an order waits for a person. The gates stand in the order of cost: what a proposal is, what it rests on, what
it says, what is there already.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from app.memories.forbidden import forbidden_value, reads_as_order
from app.memories.notes import MAX_CHARS, MIN_CHARS, Kind, Source, Status
from app.memories.wording import Stems, norm, norm_hash, one_line, overlap, share_found, stems
from app.scope import Reference, Scope

EVERYONE = "everyone"
GROUNDED, RESTATED, MERGED = 0.30, 0.70, 0.75
MAX_PER_JOB, MAX_PER_SCOPE = 8, 200


class Refusal(StrEnum):
    """Why a proposal was not kept, as it is counted."""

    SCHEMA = "schema"
    ALIAS = "unknown_alias"
    NOT_SAID_BY_USER = "not_said_by_user"
    NOT_SAID_BY_MEMBER = "not_said_by_member"
    UNGROUNDED = "ungrounded"
    RESTATES_INSTRUCTIONS = "restates_instructions"
    FORBIDDEN_VALUE = "forbidden_value"
    DELETED_BEFORE = "deleted_before"
    TWICE_IN_JOB = "twice_in_job"
    JOB_FULL = "job_full"
    SCOPE_FULL = "scope_full"


class Doubt(StrEnum):
    """Why a note waits for a person."""

    READS_AS_ORDER = "reads_as_order"
    OTHER_SCOPE = "supersedes_other_scope"
    PINNED = "supersedes_pinned"
    WRITTEN_BY_PERSON = "supersedes_written_by_person"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was shown to the model. `by` is the alias of the member who wrote it, if one did."""

    number: int
    position: int
    role: Literal["user", "assistant"]
    text: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A note that is kept and applies to the session, active or pending."""

    id: str
    scope: Scope
    content: str
    status: Status = Status.ACTIVE
    pinned: bool = False
    source: Source = Source.DISTILLED
    hash: bytes = field(init=False)
    stems: Stems = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", norm_hash(norm(self.content)))
        object.__setattr__(self, "stems", stems(self.content))


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the model answered: `about` and `applies_to` are aliases, `evidence` numbers of lines, `target` one of a note."""

    action: Literal["add", "confirm", "supersede"]
    about: str
    applies_to: str
    kind: str
    text: str
    importance: int
    evidence: tuple[int, ...]
    target: int | None = None
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What proposals are judged by. `notes` are all that apply to the session; `shown` gives the numbers that the model saw
    for some of them; `deleted` are the tombstones of the session's scopes."""

    scope: Scope
    lines: tuple[Line, ...]
    instructions: tuple[Stems, ...] = ()
    notes: tuple[Known, ...] = ()
    shown: Mapping[int, str] = field(default_factory=dict)
    deleted: frozenset[tuple[Scope, bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class Note:
    """A note to be kept. `evidence` are positions of user messages in the session."""

    scope: Scope
    kind: Kind
    content: str
    importance: int
    evidence: tuple[int, ...]
    valid_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Add:
    note: Note


@dataclass(frozen=True, slots=True)
class Confirm:
    memory_id: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Supersede:
    target_id: str
    note: Note


@dataclass(frozen=True, slots=True)
class Pend:
    """Kept, but not sent until a person approves; then it retires `target_id`, if that is of the same scope."""

    note: Note
    doubt: Doubt
    target_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    reason: Refusal


Decision = Add | Confirm | Supersede | Pend | Refuse


def sentences(texts: Iterable[str]) -> tuple[Stems, ...]:
    """The sentences of rules and system prompts, as `Context.instructions` wants them."""
    parts = (part for text in texts for part in re.split(r"[.!?;:\n。]+", text))
    return tuple(found for part in parts if (found := stems(part)))


def judge(proposals: Sequence[Proposal], context: Context) -> list[Decision]:
    """A decision for each proposal of one job, in their order; at most 8 are kept."""
    decisions: list[Decision] = []
    kept: list[Note] = []
    for proposal in proposals:
        decision = decide(proposal, context, kept)
        if isinstance(decision, Add | Supersede | Pend):
            kept.append(decision.note)
        if isinstance(decision, Supersede):
            # retired: what follows in this job can neither confirm nor supersede it again
            context = replace(context, notes=tuple(note for note in context.notes if note.id != decision.target_id))
        decisions.append(decision)
    return decisions


def decide(proposal: Proposal, context: Context, kept: Sequence[Note] = ()) -> Decision:
    """The decision on one proposal; `kept` are the notes of the same job that were kept before it."""
    if (refused := _malformed(proposal)) is not None:
        return Refuse(refused)
    scope = scope_named(proposal, context.scope)
    if scope is None:
        return Refuse(Refusal.ALIAS)
    target = _target(proposal, context)
    if proposal.action != "add" and target is None:
        return Refuse(Refusal.SCHEMA)
    cited = [line for line in context.lines if line.number in proposal.evidence]
    if (refused := _unfounded(proposal, scope, cited)) is not None:
        return Refuse(refused)
    confirmed = target if proposal.action == "confirm" else None
    content = one_line(proposal.text) if confirmed is None else confirmed.content
    if (refused := _unfit(content, cited, context)) is not None:
        return Refuse(refused)
    evidence = tuple(sorted({line.position for line in cited}))
    if confirmed is not None:
        return Confirm(confirmed.id, evidence)
    note = Note(scope, Kind(proposal.kind), content, proposal.importance, evidence, proposal.valid_until)
    return _placed(note, target, context, kept)


def scope_named(proposal: Proposal, session: Scope) -> Scope | None:
    """The scope that the aliases of a proposal mean in this session; None when one of them is none of its aliases.

    Only the session gives ids: whatever a model writes, a note stays within it.
    """
    about: dict[str, Reference | None] = {session.tenant.type: None}
    if session.subject is not None:
        about[session.subject.type] = session.subject
    applies_to: dict[str, Reference | None] = {EVERYONE: None}
    if session.member is not None:
        applies_to[session.member.type] = session.member
    if proposal.about not in about or proposal.applies_to not in applies_to:
        return None
    return Scope(tenant=session.tenant, subject=about[proposal.about], member=applies_to[proposal.applies_to])


def _malformed(proposal: Proposal) -> Refusal | None:
    is_long_enough = MIN_CHARS <= len(one_line(proposal.text)) <= MAX_CHARS or proposal.action == "confirm"
    is_known = proposal.kind in set(Kind) and proposal.action in ("add", "confirm", "supersede")
    good = is_long_enough and is_known and 1 <= proposal.importance <= 5 and proposal.evidence
    return None if good else Refusal.SCHEMA


def _target(proposal: Proposal, context: Context) -> Known | None:
    memory_id = context.shown.get(proposal.target) if proposal.target is not None and proposal.action != "add" else None
    return next((note for note in context.notes if note.id == memory_id), None)


def _unfounded(proposal: Proposal, scope: Scope, cited: Sequence[Line]) -> Refusal | None:
    if {line.number for line in cited} != set(proposal.evidence) or any(line.role != "user" for line in cited):
        return Refusal.NOT_SAID_BY_USER
    if scope.member is not None and all(line.by != proposal.applies_to for line in cited):
        return Refusal.NOT_SAID_BY_MEMBER
    return None


def _unfit(content: str, cited: Sequence[Line], context: Context) -> Refusal | None:
    found = stems(content)
    said = frozenset().union(*(stems(line.text) for line in cited))
    if share_found(found, said) < GROUNDED:
        return Refusal.UNGROUNDED
    if any(share_found(found, sentence) >= RESTATED for sentence in context.instructions):
        return Refusal.RESTATES_INSTRUCTIONS
    return Refusal.FORBIDDEN_VALUE if forbidden_value(content) else None


def _placed(note: Note, target: Known | None, context: Context, kept: Sequence[Note]) -> Decision:
    """What becomes of a note that may be kept, beside those that are there."""
    hashed = norm_hash(norm(note.content))
    same = next((known for known in context.notes if known.hash == hashed and known.scope.applies_to(note.scope)), None)
    if same is not None:
        return Confirm(same.id, note.evidence)
    if (note.scope, hashed) in context.deleted:
        return Refuse(Refusal.DELETED_BEFORE)
    if any(one.scope == note.scope and _is_same(one.content, note.content) for one in kept):
        return Refuse(Refusal.TWICE_IN_JOB)
    if target is None and (alike := _alike(note, context.notes)) is not None:
        return Confirm(alike.id, note.evidence)
    if len(kept) >= MAX_PER_JOB:
        return Refuse(Refusal.JOB_FULL)
    decision = _superseding(note, target) if target is not None else _adding(note)
    here = sum(known.scope == note.scope for known in context.notes) + sum(one.scope == note.scope for one in kept)
    if here >= MAX_PER_SCOPE and not isinstance(decision, Supersede):
        return Refuse(Refusal.SCOPE_FULL)
    return decision


def _adding(note: Note) -> Decision:
    return Pend(note, Doubt.READS_AS_ORDER) if reads_as_order(note.content) else Add(note)


def _superseding(note: Note, target: Known) -> Decision:
    if reads_as_order(note.content):
        return Pend(note, Doubt.READS_AS_ORDER, target.id)
    if target.scope != note.scope:
        return Pend(note, Doubt.OTHER_SCOPE, target.id)
    if target.pinned:
        return Pend(note, Doubt.PINNED, target.id)
    if target.source is Source.API:
        return Pend(note, Doubt.WRITTEN_BY_PERSON, target.id)
    return Supersede(target.id, note)


def _alike(note: Note, notes: Sequence[Known]) -> Known | None:
    """The note of the same scope that says the same in nearly the same words."""
    found = stems(note.content)
    return next((known for known in notes if known.scope == note.scope and overlap(found, known.stems) >= MERGED), None)


def _is_same(one: str, other: str) -> bool:
    return norm(one) == norm(other) or overlap(stems(one), stems(other)) >= MERGED
