"""Hooks of an operator: keep a tool from one kind of member, and put a line above every system prompt.

RONDO_HOOKS=examples/hooks/member_rules.py rondo serve
"""

from dataclasses import replace

from app.loop.messages import Message, ToolOutcome, ToolResult

HEADER = "This service is for customers of Casa Nova only."
BLOCKED = {"intern": {"schedule_viewing"}}
"""Tools that a member of this type may not use."""


def before_model(messages, run):
    """Put the header on top of the system prompt, or make one of it."""
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{HEADER}\n\n{messages[0].content}"), *messages[1:]]
    return [Message("system", HEADER), *messages]


async def before_tool(call, run):
    """Answer in the place of a tool that this member may not use; otherwise let the call go on."""
    member = run["member"] or {"type": None}
    if call.name in BLOCKED.get(member["type"], ()):
        return ToolResult({"error": "This member may not do that."}, ToolOutcome.DENIED)
    return call
