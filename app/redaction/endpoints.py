"""A trial of redaction, which stores nothing."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Response

from app.bodies import body
from app.infra.errors import Invalid
from app.redaction import recogniser
from app.redaction.labels import LONG_TEXT_CHARS, RedactionError
from app.redaction.redactor import Found, Redactor
from app.redaction.shapes import PreviewRead, RedactionPreview
from app.redaction.vault import SessionVault
from app.web import Service, json_response

router = APIRouter(prefix="/v1", tags=["redaction"])


@router.post("/redaction/preview", response_model=PreviewRead)
async def preview_redaction(caller: Service, wanted: Annotated[RedactionPreview, body(RedactionPreview)]) -> Response:
    """The text with a token in the place of each personal value, and what stood where."""
    try:
        if len(wanted.text) > LONG_TEXT_CHARS or wanted.dictionary:
            text, found = await asyncio.to_thread(_previewed, wanted)
        else:
            text, found = _previewed(wanted)
    except RedactionError:
        raise Invalid("The text cannot be redacted in the time that there is.", code="redaction_failed") from None
    spans = [{"start": one.start, "end": one.end, "type": one.label, "token": one.token} for one in found]
    return json_response({"text": text, "spans": spans})


def _previewed(wanted: RedactionPreview) -> tuple[str, list[Found]]:
    entries = [entry.as_entry() for entry in wanted.dictionary]
    return Redactor(SessionVault(), entries, recogniser.looking()).found(wanted.text)
