"""The three axes by which everything is kept: tenant, subject, member.

`tenant` is whose it is, `subject` what it is about, `member` whom it applies to. Each is a reference to a thing of the
caller's, by the caller's own word and id.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, field_validator

from app.infra.errors import Invalid
from app.shapes import Shape

_BAD_IN_TYPE = re.compile(r"[\x00-\x1f\x7f-\x9f:\"'«»“”‘’`]")


def _id_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Reference(Shape):
    """`{"type": "organization", "id": "42"}`; an integer id is taken and kept as a string."""

    model_config = ConfigDict(frozen=True)

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    id: Annotated[str, BeforeValidator(_id_as_text), StringConstraints(min_length=1, max_length=255)]

    @field_validator("type")
    @classmethod
    def _word(cls, value: str) -> str:
        if _BAD_IN_TYPE.search(value) or value != value.strip():
            raise ValueError("no control characters, colons or quotes, and no spaces around it")
        if value.casefold() == "everyone":
            raise ValueError("'everyone' is reserved")
        return value

    def as_dict(self) -> dict[str, str]:
        return {"type": self.type, "id": self.id}


def parse_reference(text: str) -> Reference:
    """`organization:42`, as a query has it. Raises ValueError."""
    kind, colon, identifier = text.partition(":")
    if not colon:
        raise ValueError("TYPE:ID is expected")
    return Reference(type=kind, id=identifier)


def parse_axes(query: Mapping[str, str | None]) -> dict[str, Reference | None]:
    """The axes that a query names, by their names: a reference, or None for `null`. Raises Invalid."""
    named: dict[str, Reference | None] = {}
    for name, value in query.items():
        if value is None:
            continue
        try:
            named[name] = None if value == "null" and name != "tenant" else parse_reference(value)
        except ValueError:
            raise Invalid(errors=[(("query", name), "TYPE:ID is expected")]) from None
    return named


class Scope(BaseModel):
    """Whose, about what, for whom. Two axes of one scope never share a type (`alias_conflict`)."""

    model_config = ConfigDict(frozen=True)

    tenant: Reference
    subject: Reference | None = None
    member: Reference | None = None

    def has_alias_conflict(self) -> bool:
        types = [axis.type for axis in (self.tenant, self.subject, self.member) if axis is not None]
        return len(types) != len(set(types))

    def check(self) -> None:
        """Raises Invalid (`alias_conflict`) where two axes have the same type."""
        if self.has_alias_conflict():
            raise Invalid("Two axes of one scope have the same type.", code="alias_conflict")

    def applies_to(self, other: "Scope") -> bool:
        """Whether what is kept in this scope holds in the other one, as `APPLIES` says it in SQL."""
        return self.tenant == other.tenant and self.subject in (None, other.subject) and self.member in (None, other.member)

    def as_columns(self) -> dict[str, str | None]:
        """`tenant_type`, `tenant_id`, … as the tables keep it."""
        columns: dict[str, str | None] = {}
        for name in ("tenant", "subject", "member"):
            axis: Reference | None = getattr(self, name)
            columns[f"{name}_type"] = axis.type if axis else None
            columns[f"{name}_id"] = axis.id if axis else None
        return columns


AXIS_COLUMNS = tuple(f"{name}_{part}" for name in ("tenant", "subject", "member") for part in ("type", "id"))
"""The names of `Scope.as_columns`, in their order."""


class Scoped(Shape):
    """A body, or a part of one, that names a scope."""

    tenant: Reference
    subject: Reference | None = None
    member: Reference | None = None

    @property
    def scope(self) -> Scope:
        return Scope(tenant=self.tenant, subject=self.subject, member=self.member)


APPLIES = "scope_hash = ANY(scopes_applying({0}, {1}, {2}, {3}, {4}, {5}))"
"""What applies to a scope, in SQL, for every table that has a `scope_hash`: the same tenant, no subject or the same one,
no member or the same one. The places are the values of `Scope.as_columns`, in their order."""

APPLIES_TO_SESSION = (
    "scope_hash = ANY((SELECT scopes_applying(s.tenant_type, s.tenant_id, s.subject_type, s.subject_id, s.member_type,"
    " s.member_id) FROM sessions AS s WHERE s.id = {session_id} AND s.workspace_id = {workspace_id})::bytea[])"
)
"""The same for a session of that workspace; where there is no such session, nothing applies."""


def applies(first: int) -> str:
    """`APPLIES` with numbered places, the first of which has this number."""
    return APPLIES.format(*(f"${number}" for number in range(first, first + 6)))


def axis(row: Any, name: str) -> dict[str, str] | None:
    """One axis of a row (attributes or keys `NAME_type`, `NAME_id`) as the API shows it."""
    kind, identifier = _field(row, f"{name}_type"), _field(row, f"{name}_id")
    return None if kind is None else {"type": kind, "id": identifier}


def _field(row: Any, name: str) -> Any:
    return row[name] if hasattr(row, "keys") else getattr(row, name)
