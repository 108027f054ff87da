"""Messages -> the `system` and `messages` of a Messages API request. Pure; whatever history comes in, the API takes it.

The API's rules, each kept here: roles alternate and begin with the user's; every `tool_use` is answered by a `tool_result`
in the very next message, all of them together and before anything else there; ids are unique and of plain characters; an
input is an object; no text is blank; thinking does not end a message; a server tool's call and result come as a pair.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.loop.messages import Content, Image, Message, ToolCall
from app.loop.tool_calls import folded
from app.providers.conversation import mapped_id, paired, unused_id, wire_name

Block = dict[str, Any]

THINKING = frozenset({"thinking", "redacted_thinking"})
START = "(The conversation begins with the assistant.)"
CONTINUE = "Please continue."

_WIRE_ID = re.compile(r"[A-Za-z0-9_-]+")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


class Conversation(NamedTuple):
    """The system blocks, and the messages as `{"role", "content": [blocks]}`."""

    system: list[Block]
    messages: list[dict[str, Any]]


class _Turn(NamedTuple):
    role: str
    blocks: list[Block]


def conversation_of(messages: Sequence[Message], full_name: str) -> Conversation:
    """What the model `full_name` is sent; the same messages always give the same, so a longer list keeps its beginning.

    System messages at the beginning are the system prompt; later ones become the user's words, since the API has no place
    for them. An assistant message that this very model wrote goes back as the blocks it came in, with its thinking.
    """
    leading = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    system = [block for message in messages[:leading] for block in _parts(message.text)]
    writer = _Writer(full_name)
    known = paired(messages[leading:])
    turns = _merged([writer.turn(message) for message in known])
    # Only a turn that the API itself paused may come last: it is then sent back as it is, to be gone on with.
    paused = bool(known) and writer.is_own(known[-1]) and not known[-1].tool_calls
    if not turns or (turns[-1].role == "assistant" and not paused):
        turns.append(_Turn("user", [_text(CONTINUE)]))
    turns = _merged(_without_halves(turns))
    if not turns or turns[0].role == "assistant":
        turns.insert(0, _Turn("user", [_text(START)]))
    if turns[-1].role == "assistant":
        turns[-1] = _Turn("assistant", _trimmed(turns[-1].blocks))
    return Conversation(system, [{"role": turn.role, "content": turn.blocks} for turn in turns])


def without_thinking(conversation: Conversation) -> Conversation:
    """The same without any thinking, for a request that must not hold it."""
    turns = [
        _Turn(message["role"], [block for block in message["content"] if block["type"] not in THINKING])
        for message in conversation.messages
    ]
    return Conversation(conversation.system, [{"role": turn.role, "content": turn.blocks} for turn in _merged(turns)])


class _Writer:
    """Turns one message after the other into blocks, and remembers which id each call got for the result behind it."""

    def __init__(self, full_name: str) -> None:
        self._full_name = full_name
        self._used: set[str] = set()
        self._wire_ids: dict[str, str] = {}

    def is_own(self, message: Message) -> bool:
        return message.native_model == self._full_name and bool(_native_blocks(message))

    def turn(self, message: Message) -> _Turn:
        match message.role:
            case "assistant":
                own = self.is_own(message)
                return _Turn("assistant", self._own_blocks(message) if own else self._blocks(message))
            case "tool":
                return _Turn("user", [self._result(message)])
            case _:
                return _Turn("user", _parts(message.content))

    def _blocks(self, message: Message) -> list[Block]:
        return [*_parts(message.text), *(self._call(call, None) for call in message.tool_calls)]

    def _own_blocks(self, message: Message) -> list[Block]:
        """The blocks as they came, where the message still says the same: what a hook made of the reply wins.

        A text that was changed stands in the place of the first one, a call that has gone goes, a new one is added.
        """
        native = _native_blocks(message)
        said = [block["text"] for block in native if block["type"] == "text" and isinstance(block.get("text"), str)]
        changed = None if "".join(said) == message.text else _parts(message.text)
        calls = list(message.tool_calls)
        blocks: list[Block] = []
        for block in native:
            kind = block["type"]
            if changed and kind in ("text", "tool_use"):
                blocks += changed
                changed = []
            if kind == "tool_use":
                call = next((call for call in calls if call.provider_id == block.get("id")), None)
                if call is not None:
                    calls.remove(call)
                    blocks.append(self._call(call, block))
            elif kind != "text" or (changed is None and _is_said(block.get("text"))):
                blocks.append(block)
        return [*blocks, *(changed or ()), *(self._call(call, None) for call in calls)]

    def _call(self, call: ToolCall, own: Block | None) -> Block:
        given = call.provider_id if own is not None else None
        wire_id = unused_id(given if given and _WIRE_ID.fullmatch(given) else mapped_id(call.id), self._used)
        self._used.add(wire_id)
        self._wire_ids[call.id] = wire_id
        if own is None:
            return {"type": "tool_use", "id": wire_id, "name": wire_name(call.name), "input": call.arguments or {}}
        name, input_ = str(own.get("name", "")), call.arguments or {}
        named = name if folded(name) == folded(call.name) else call.name
        same = own.get("input") == input_
        return {**own, "id": wire_id, "name": wire_name(named), "input": own["input"] if same else input_}

    def _result(self, message: Message) -> Block:
        block: Block = {"type": "tool_result", "tool_use_id": self._wire_ids[message.tool_call_id or ""]}
        if isinstance(message.content, str):
            # No content is allowed, a blank one is not.
            if message.content.strip():
                block["content"] = message.content
        elif parts := _parts(message.content):
            block["content"] = parts
        if _is_failed(message.text):
            block["is_error"] = True
        return block


def _native_blocks(message: Message) -> list[Block]:
    blocks = message.native.get("blocks")
    if not isinstance(blocks, list):
        return []
    return [block for block in blocks if isinstance(block, dict) and isinstance(block.get("type"), str)]


def _is_failed(content: str) -> bool:
    """Whether a result is an object that holds an `error` and nothing else; a hint may stand behind it."""
    if not content.startswith('{"error"'):
        return False
    try:
        value, _ = json.JSONDecoder().raw_decode(content)
    except (ValueError, RecursionError):
        return False
    return value.keys() == {"error"} and value["error"] is not None


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _parts(content: Content) -> list[Block]:
    parts = (content,) if isinstance(content, str) else content
    said = (part for part in parts if isinstance(part, Image) or _is_said(part))
    return [_image(part) if isinstance(part, Image) else _text(part) for part in said]


def _is_said(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _image(image: Image) -> Block:
    if image.url is None:
        return _base64(image.media_type or "image/png", image.data or "")
    data = _DATA_URL.fullmatch(image.url)
    return _base64(data[1], data[2]) if data else {"type": "image", "source": {"type": "url", "url": image.url}}


def _base64(media_type: str, data: str) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _merged(turns: Sequence[_Turn]) -> list[_Turn]:
    """Without empty turns, and with those of one role that follow each other as one."""
    merged: list[_Turn] = []
    for turn in turns:
        if not turn.blocks:
            continue
        if merged and merged[-1].role == turn.role:
            merged[-1] = _Turn(turn.role, [*merged[-1].blocks, *turn.blocks])
        else:
            merged.append(turn)
    return merged


def _without_halves(turns: Sequence[_Turn]) -> list[_Turn]:
    """Without a server tool's call that no result follows, without a result whose call is gone, and without thinking at
    the end of a message.

    A call in the last assistant turn may still be open: the API runs it once it is sent the turn back, with nothing but
    the results of the turn's other calls behind it.
    """
    open_from = len(turns)
    while open_from and all(block["type"] == "tool_result" for block in turns[open_from - 1].blocks):
        open_from -= 1
    followed = _followed(turns)
    called: set[Any] = set()
    whole: list[_Turn] = []
    for at, turn in enumerate(turns):
        if turn.role == "user":
            whole.append(turn)
            continue
        blocks = []
        for block in turn.blocks:
            if _is_server_call(block):
                if id(block) not in followed and at != open_from - 1:
                    continue
                called.add(block.get("id"))
            elif _is_server_result(block) and block["tool_use_id"] not in called:
                continue
            blocks.append(block)
        whole.append(_Turn("assistant", _without_last_thoughts(blocks)))
    return whole


def _followed(turns: Sequence[_Turn]) -> set[int]:
    """The server tools' calls, by identity, whose result comes later."""
    results: set[Any] = set()
    followed: set[int] = set()
    for block in (block for turn in reversed(turns) for block in reversed(turn.blocks)):
        if _is_server_result(block):
            results.add(block["tool_use_id"])
        elif _is_server_call(block) and block.get("id") in results:
            followed.add(id(block))
    return followed


def _is_server_call(block: Mapping[str, Any]) -> bool:
    kind: str = block["type"]
    return kind.endswith("_tool_use") and isinstance(block.get("id"), str)


def _is_server_result(block: Mapping[str, Any]) -> bool:
    kind: str = block["type"]
    return kind.endswith("_tool_result") and isinstance(block.get("tool_use_id"), str)


def _without_last_thoughts(blocks: list[Block]) -> list[Block]:
    end = len(blocks)
    while end and blocks[end - 1]["type"] in THINKING:
        end -= 1
    return blocks[:end]


def _trimmed(blocks: list[Block]) -> list[Block]:
    """Without white space at the very end, which the API refuses there."""
    last = blocks[-1]
    return [*blocks[:-1], {**last, "text": last["text"].rstrip()}] if last["type"] == "text" else blocks
