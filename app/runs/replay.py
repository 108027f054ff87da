"""The events of a run made again from its rows, for when the event log is lost or has run out.

Every event keeps its seq. Deltas are gone: a message's text comes as one delta that bears the last seq its deltas had.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.events.frames import frame_of_dict
from app.infra import clock
from app.infra.database import Pool
from app.loop.events import TERMINAL_TYPES
from app.loop.messages import ACTIVE_STATUSES
from app.runs.shapes import queued_json, run_json, started_json
from app.sessions.models import message_json


async def rebuild(pool: Pool, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All events that are stored of a run, as JSON, in order."""
    kept = await pool.fetch("SELECT * FROM run_events WHERE run_id = $1 ORDER BY seq", run["id"])
    if kept and kept[-1]["type"] in TERMINAL_TYPES and run["status"] in ACTIVE_STATUSES:
        # it has ended since its row was read
        run = await pool.fetchrow("SELECT * FROM runs WHERE id = $1", run["id"]) or run
    calls = {row["id"]: row for row in await pool.fetch("SELECT * FROM tool_calls WHERE run_id = $1", run["id"])}
    messages = await _messages(pool, run)
    bodies = [_body(run, 1, "run.queued", clock.rfc3339(run["created_at"]), {"run": queued_json(run)})]
    if run["started_at"] is not None:
        started_at = clock.rfc3339(run["started_at"])
        bodies.append(_body(run, 2, "run.started", started_at, {"run": started_json(run)}))
    for row in kept:
        bodies += _event(run, row, calls, messages)
    return bodies


async def _messages(pool: Pool, run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    rows = await pool.fetch("SELECT * FROM messages WHERE run_id = $1 AND role = 'assistant'", run["id"])
    return {row["id"]: message_json(row) for row in rows}


def _event(
    run: Mapping[str, Any],
    row: Mapping[str, Any],
    calls: Mapping[str, Mapping[str, Any]],
    messages: Mapping[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    seq, kind, at, ref, data = row["seq"], row["type"], row["at"], row["ref"], row["data"]
    match kind:
        case "message.completed":
            iteration, message = data["iteration"], messages.get(ref) or data["message"]
            bodies = [_body(run, seq, kind, at, {"iteration": iteration, "message": message})]
            if data["delta_seq"] is not None:
                delta = {"iteration": iteration, "message_id": ref, "text": message["content"]}
                bodies.insert(0, _body(run, data["delta_seq"], "message.delta", at, delta))
            return bodies
        case "tool.invoking":
            call = calls[ref]
            shown = {"iteration": call["iteration"], "call_id": ref, "tool": call["tool"], "arguments": _arguments(call)}
            return [_body(run, seq, kind, at, shown)]
        case "tool.invoked":
            call = calls[ref]
            shown = {"iteration": call["iteration"], "call_id": ref, "tool": call["tool"]}
            for name in ("result", "truncated", "outcome", "seconds", "attempts"):
                shown[name] = call[name]
            return [_body(run, seq, kind, at, shown)]
        case "run.completed" | "run.incomplete" | "run.failed" | "run.cancelled":
            return [_body(run, seq, kind, at, {"run": run_json(run)})]
        case _:
            return [_body(run, seq, kind, at, data)]


def _arguments(call: Mapping[str, Any]) -> Any:
    return call["raw_arguments"] if call["arguments"] is None else call["arguments"]


def _body(run: Mapping[str, Any], seq: int, kind: str, at: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, "run_id": run["id"], "seq": seq, "at": at, **fields}


def frames_after(bodies: Sequence[Mapping[str, Any]], after: int) -> bytes:
    """The frames of rebuilt events after a seq.

    A client that was cut off inside a message is first told to forget what it has of it, in a frame without an id.
    """
    frames: list[bytes] = []
    before = 0
    for body in bodies:
        if body["seq"] > after:
            if body["type"] == "message.delta" and before < after:
                discarded = {key: body[key] for key in ("run_id", "seq", "at", "iteration", "message_id")}
                frames.append(frame_of_dict({"type": "message.discarded", **discarded}, with_id=False))
            frames.append(frame_of_dict(dict(body)))
        before = body["seq"]
    return b"".join(frames)
