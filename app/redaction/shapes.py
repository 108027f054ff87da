"""What redaction is told and what its trial shows."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator

from app.redaction.dictionary import MAX_VALUE_CHARS, Entry
from app.redaction.labels import MAX_TEXT_CHARS, is_label
from app.shapes import Shape

Value = Annotated[str, StringConstraints(min_length=1, max_length=MAX_VALUE_CHARS)]


class DictionaryEntry(Shape):
    """A value that the caller names, with other names for the same thing."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=16)]
    value: Value
    aliases: Annotated[list[Value], Field(max_length=50)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _can_be_looked_for(self) -> "DictionaryEntry":
        self.as_entry()
        return self

    def as_entry(self) -> Entry:
        """Raises ValueError for a type that cannot be a label, or a value without a letter or digit."""
        return Entry(self.type, self.value, tuple(self.aliases))


Kind = Literal["PER", "EMAIL", "TEL", "IBAN", "CARD", "ID", "IP", "URL", "KEY", "COIN", "ENT"]


def _label(name: str) -> str:
    if not is_label(name):
        raise ValueError("a label has up to 16 capitals and digits, starts with a capital, and is not LIT")
    return name


Label = Annotated[str, AfterValidator(_label)]
Path = Annotated[str, StringConstraints(max_length=200)]


class RedactionConfig(Shape):
    """Whether values become tokens, of which kinds (null: all), and what to look for besides, in any case."""

    enabled: bool | None = None
    entities: Annotated[list[Kind], Field(max_length=20)] | None = None
    dictionary: Annotated[list[DictionaryEntry], Field(max_length=1000)] | None = None


class ToolRedaction(Shape):
    """What becomes of tokens in a tool's arguments, labels that it is given in any case, and which paths of its results
    (`items[].owner`) hold values of which label."""

    arguments: Literal["restore", "tokens", "refuse"] = "restore"
    allow: Annotated[list[Label], Field(max_length=50)] = Field(default_factory=list)
    result: Annotated[dict[Path, Label], Field(max_length=200)] = Field(default_factory=dict)


class RedactionPreview(Shape):
    text: Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
    dictionary: Annotated[list[DictionaryEntry], Field(max_length=1000)] = Field(default_factory=list)


class PreviewedSpan(BaseModel):
    """`text[start:end]` of the given text, in Unicode characters, and the token in its place."""

    start: int
    end: int
    type: str
    token: str


class PreviewRead(BaseModel):
    text: str
    spans: list[PreviewedSpan]
