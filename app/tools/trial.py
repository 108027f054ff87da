"""Trying a tool by hand: one real signed call, with everything that went out and came back."""

from typing import Any

import orjson
from pydantic import BaseModel

from app.infra import ids
from app.infra.crypto import Crypto
from app.infra.errors import Invalid
from app.loop.messages import ToolCall
from app.loop.tool_calls import judged
from app.loop.turn import Limits
from app.outbound.sender import Sender
from app.scope import Reference
from app.shapes import JsonObject, Shape
from app.tools.answers import ACCEPTED, masked
from app.tools.schema import compiled
from app.tools.toolbox import target_of
from app.tools.webhook import RunIdentity, exchange, sent_secrets

MASK = "********"


class ToolTrial(Shape):
    """`tenant`, `subject` and `member` are what the webhook is told, if it shall be told any."""

    arguments: JsonObject
    context: JsonObject | None = None
    tenant: Reference | None = None
    subject: Reference | None = None
    member: Reference | None = None


class SentRequest(BaseModel):
    """`headers` hides the values of the tool's own."""

    headers: dict[str, str]
    body: str


class GotResponse(BaseModel):
    status: int
    body: str
    seconds: float


class TrialRead(BaseModel):
    """`response` is null where no whole answer came; `cause` then tells why. `outcome` is that of a call, or `waiting` where
    the webhook accepted it and gives its result later."""

    request: SentRequest
    response: GotResponse | None
    result: Any
    outcome: str
    cause: str | None


async def try_tool(crypto: Crypto, sender: Sender, row: Any, wanted: ToolTrial) -> JsonObject:
    """`row` is the tool's record. Raises Invalid for a client tool, and for arguments that its schema refuses."""
    if row["kind"] != "webhook":
        raise Invalid("A client tool has no webhook that could be called.")
    checked = compiled(orjson.dumps(row["parameters"]).decode()).check(wanted.arguments)
    if checked.problems:
        raise Invalid(errors=[(("body", "arguments"), problem) for problem in checked.problems])
    named = wanted.model_dump(include={"tenant", "subject", "member"})
    identity = RunIdentity(run_id=ids.new(ids.RUN), session_id=None, agent_id=None, context=wanted.context or {}, **named)
    call = ToolCall(ids.new(ids.CALL), row["name"], checked.arguments, "")
    target = target_of(crypto, row)
    done = await exchange(sender, target, identity, call)
    keys = row["result_keys"] or Limits().result_keys
    result = judged(row["name"], done.result, tuple(keys))
    own = {name.lower() for name in target.headers}
    headers = {name: MASK if name.lower() in own else value for name, value in done.request_headers.items()}
    answer = done.answer
    return {
        "request": {"headers": headers, "body": done.request_body.decode()},
        "response": None if answer is None else {
            "status": answer.status,
            "body": masked(answer.body.decode(errors="replace").replace("\x00", ""), sent_secrets(target)),
            "seconds": answer.seconds,
        },
        "result": result.result,
        "outcome": "waiting" if done.result.status == ACCEPTED else result.outcome,
        "cause": result.cause,
    }  # fmt: skip
