"""A model request -> the body of a chat-completions call. Pure.

What one model wrote for itself (its call ids, reasoning, signatures) goes back to that model alone, as it came. Another
model gets ids and names that every server accepts.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from app.loop.messages import Content, Image, Message, ToolCall
from app.loop.ports import ModelRequest, OfferedTool
from app.providers import windows
from app.providers.client import ModelSettings
from app.providers.conversation import mapped_id, paired, unused_id, wire_name

RESERVED_OPTIONS = frozenset({"stream", "n", "tools", "messages", "tool_choice", "model", "stream_options"})
"""Model options that would break the loop; the API refuses them."""

OWN_OPTIONS = frozenset({"think_tags", "max_output_tokens", "reasoning_content", windows.OPTION})
"""Options of this client, never sent on under these names.

`think_tags`: true = reasoning stands in `<think>` tags at the start of the content; `"prefilled"` = the opening tag is
missing, too. `reasoning_content: "always"` = every assistant turn with calls must carry that field, if empty.
"""

CAPABILITIES: Mapping[str, Mapping[str, Any]] = {
    "web_search": {"web_search_options": {}},
    "reasoning": {"reasoning_effort": "medium"},
}
"""What a provider can add itself, and the request keys that ask for it; an option of the same name wins."""

_SHOWN_BELOW = "(The result is the picture below.)"
_FROM_RESULTS = "(Pictures from the results above.)"
_OWN_MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id"})


def request_body(request: ModelRequest, settings: ModelSettings, provider: str, base_url: str) -> dict[str, Any]:
    """The whole body, streamed and with usage."""
    full_name = f"{provider}/{settings.model}"
    always = settings.options.get("reasoning_content") == "always"
    return {
        "model": settings.model,
        "messages": _Conversation(full_name, always_reasoning=always).wire(request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_tools(request.tools, request.tool_choice),
        **_options(settings, base_url, has_tools=bool(request.tools)),
    }


def _options(settings: ModelSettings, base_url: str, *, has_tools: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for capability in settings.capabilities:
        options.update(CAPABILITIES.get(capability, {}))
    refused = RESERVED_OPTIONS | OWN_OPTIONS
    options.update({key: value for key, value in settings.options.items() if key not in refused})
    limit = settings.options.get("max_output_tokens")
    if limit is not None:
        options["max_completion_tokens" if _is_openais(base_url) else "max_tokens"] = limit
    if not has_tools:
        options.pop("parallel_tool_calls", None)
    if settings.response_schema is not None:
        schema = {"name": "answer", "strict": False, "schema": settings.response_schema}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _is_openais(base_url: str) -> bool:
    """Whether the server runs OpenAI's own models, of which the newer refuse `max_tokens`; others know only that name."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith(".openai.azure.com")


def _tools(tools: Sequence[OfferedTool], choice: str) -> dict[str, Any]:
    """Nothing at all without tools: servers refuse an empty list, and a choice among none."""
    if not tools:
        return {}
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    named = {"type": "function", "function": {"name": choice}}
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": choice if choice in ("auto", "none", "required") else named,
    }


class _Conversation:
    """Turns messages into wire form in order, and remembers which id each call got for the result that follows."""

    def __init__(self, full_name: str, *, always_reasoning: bool) -> None:
        self.full_name = full_name
        self.always_reasoning = always_reasoning
        self.wire_ids: dict[str, str] = {}

    def wire(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        # A model that once wrote reasoning_content wants it on each of its turns with calls, be it empty.
        self.always_reasoning |= any(self._is_own(m) and "reasoning_content" in m.native for m in messages)
        turned: list[dict[str, Any] | None] = []
        pictures: list[str | Image] = []
        for message in paired(_one_system(messages)):
            if message.role != "tool" and pictures:
                turned.append(_shown(pictures))
                pictures = []
            turned.append(self._message(message))
            if message.role == "tool" and not isinstance(message.content, str):
                pictures += [part for part in message.content if isinstance(part, Image)]
        turned.append(_shown(pictures) if pictures else None)
        return _joined([message for message in turned if message is not None])

    def _is_own(self, message: Message) -> bool:
        return message.native_model == self.full_name

    def _message(self, message: Message) -> dict[str, Any] | None:
        match message.role:
            case "assistant":
                return self._assistant(message)
            case "tool":
                return self._result(message)
            case _:
                return {"role": message.role, "content": _content(message.content)}

    def _assistant(self, message: Message) -> dict[str, Any] | None:
        """None for a turn in which nothing was said: servers refuse it."""
        text = message.text
        if not message.tool_calls and not text.strip():
            return None
        wire: dict[str, Any] = {}
        if self._is_own(message):
            wire.update({key: value for key, value in message.native.items() if key not in _OWN_MESSAGE_KEYS})
        wire.update(role="assistant", content=text or None)
        if message.tool_calls:
            wire["tool_calls"] = self._calls(message)
            if self.always_reasoning:
                wire.setdefault("reasoning_content", "")
        return wire

    def _calls(self, message: Message) -> list[dict[str, Any]]:
        own = self._is_own(message)
        used: set[str] = set()
        calls = []
        for call in message.tool_calls:
            wire_id = unused_id(call.provider_id if own and call.provider_id else mapped_id(call.id), used)
            used.add(wire_id)
            self.wire_ids[call.id] = wire_id
            calls.append(_call(call, wire_id, call.native if own else {}))
        return calls

    def _result(self, message: Message) -> dict[str, Any]:
        return {
            "role": "tool",
            "tool_call_id": self.wire_ids[message.tool_call_id or ""],
            "content": message.content if isinstance(message.content, str) else message.text or _SHOWN_BELOW,
        }


def _shown(pictures: Sequence[str | Image]) -> dict[str, Any]:
    """Pictures that results held: only a user may show one, and nothing may stand between the results."""
    return {"role": "user", "content": [_part(_FROM_RESULTS), *map(_part, pictures)]}


def _one_system(messages: Sequence[Message]) -> list[Message]:
    """With the system messages at the beginning as one: the chat templates of many servers refuse a second."""
    leading = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    if leading < 2:
        return list(messages)
    texts = [message.text for message in messages[:leading] if message.text.strip()]
    return [Message("system", "\n\n".join(texts)), *messages[leading:]]


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With assistant turns that follow each other as one: many servers refuse two in a row.

    Only the last of them can have calls, since results stand right behind those.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is not None and before["role"] == message["role"] == "assistant":
            texts = [text for text in (before["content"], message["content"]) if text]
            joined[-1] = {**before, **message, "content": "\n\n".join(texts) or None}
        else:
            joined.append(message)
    return joined


def _call(call: ToolCall, wire_id: str, native: Mapping[str, Any]) -> dict[str, Any]:
    extras = dict(native)
    inner = extras.pop("function", None)
    function = {
        **(inner if isinstance(inner, dict) else {}),
        "name": wire_name(call.name),
        "arguments": json.dumps(call.arguments or {}, ensure_ascii=False, separators=(",", ":")),
    }
    return {"type": "function", **extras, "id": wire_id, "function": function}


def _content(content: Content) -> str | list[dict[str, Any]]:
    """A blank text beside a picture is left out: some servers refuse one."""
    if isinstance(content, str):
        return content
    said = [_part(part) for part in content if isinstance(part, Image) or part.strip()]
    return said or "".join(part for part in content if isinstance(part, str))


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = part.url if part.url is not None else f"data:{part.media_type or 'image/png'};base64,{part.data or ''}"
    return {"type": "image_url", "image_url": {"url": url}}
