"""What redaction is told and what its trial shows."""

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, model_validator

from app.redaction.dictionary import MAX_VALUE_CHARS, Entry
from app.redaction.labels import MAX_TEXT_CHARS
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
