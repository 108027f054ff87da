"""A model request -> the body of a Messages API call. Pure: the same request always gives the same bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.infra.telemetry import log
from app.loop.ports import ModelRequest, OfferedTool
from app.providers import windows
from app.providers.answer_schema import translated
from app.providers.anthropic_messages import THINKING, Block, Conversation, conversation_of, without_thinking
from app.providers.anthropic_models import MIN_BUDGET, Model, model_of, thinking_budget
from app.providers.client import ModelSettings
from app.providers.conversation import wire_name

RESERVED_OPTIONS = frozenset({"stream", "n", "tools", "messages", "tool_choice", "model", "stream_options", "system"})
"""Model options that would break the loop; the API refuses them."""

OWN_OPTIONS = frozenset(
    {"max_output_tokens", "max_tokens", "stop", "reasoning_effort", "parallel_tool_calls", "web_search_options"}
    | {"think_tags", "reasoning_content", windows.OPTION}
)
"""Options that are translated, or that only another client knows; none is sent under this name as it is.

`reasoning_effort`: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`, or a budget in tokens; it turns thinking on.
"""

CAPABILITIES: Mapping[str, Mapping[str, Any]] = {
    "web_search": {"type": "web_search_20250305", "name": "web_search"},
    "reasoning": {"reasoning_effort": "medium"},
}
"""What the provider can add itself: its own search tool, and thinking."""

_SEARCH_OPTIONS = frozenset({"max_uses", "allowed_domains", "blocked_domains"})
_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_CACHEABLE = frozenset({"text", "image", "document", "tool_use", "tool_result"})
_UNFIT_AT_THE_TOP = frozenset({"oneOf", "anyOf", "allOf"})
_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def request_body(request: ModelRequest, settings: ModelSettings, provider: str) -> dict[str, Any]:
    """The whole body, streamed, with marks that let the API keep the prompt's beginning from one call to the next."""
    model, options = model_of(settings.model), settings.options
    conversation = conversation_of(request.messages, f"{provider}/{settings.model}")
    thinking = _thinking(settings, model, conversation)
    if thinking is None and _effort(settings) is not None and not model.decides_how_much_to_think:
        conversation = without_thinking(conversation)
    answer = _answer_format(settings, model)
    if answer is None and settings.response_schema is not None:
        conversation.system.append(_told(settings.response_schema))
    body = {
        "model": settings.model,
        "max_tokens": _max_tokens(settings, model, thinking),
        "stream": True,
        **_prompt(conversation, cache_history="cache_control" not in options),
        **_tools(request, settings, conversation, thinks=thinking is not None),
        **({"thinking": thinking} if thinking else {}),
        **_options(options, model, thinks=thinking is not None),
    }
    config = {**_effort_config(settings, model), **({"format": answer} if answer else {})}
    if config:
        body["output_config"] = {**config, **_mapping(options.get("output_config"))}
    return body


def _options(options: Mapping[str, Any], model: Model, *, thinks: bool) -> dict[str, Any]:
    """The caller's options under the API's names; what this model would be refused for is left out."""
    passed = {key: value for key, value in options.items() if key not in RESERVED_OPTIONS | OWN_OPTIONS}
    stop = options.get("stop")
    sequences = [stop] if isinstance(stop, str) else stop
    if isinstance(sequences, list | tuple) and (sequences := [text for text in sequences if str(text).strip()]):
        passed["stop_sequences"] = sequences
    if thinks or model.samples_by_itself:
        left_out = sorted(_SAMPLING & passed.keys())
        for key in left_out:
            del passed[key]
        if left_out:
            log.warning("model_options_left_out", options=left_out)
    return passed


def _effort(settings: ModelSettings) -> Any:
    """The effort of thinking that is asked for; None when none is, or when the caller set `thinking` himself."""
    effort = settings.options.get("reasoning_effort")
    if effort is None and "reasoning" in settings.capabilities:
        effort = CAPABILITIES["reasoning"]["reasoning_effort"]
    return None if effort == "none" or "thinking" in settings.options else effort


def _thinking(settings: ModelSettings, model: Model, conversation: Conversation) -> dict[str, Any] | None:
    own = settings.options.get("thinking")
    if own is not None:
        return own if isinstance(own, dict) and own.get("type") != "disabled" else None
    effort = _effort(settings)
    if effort is None:
        return None
    if model.decides_how_much_to_think:
        # The newer of these models keep their thoughts to themselves unless asked for a summary.
        return {"type": "adaptive", **({"display": "summarized"} if model.samples_by_itself else {})}
    budget, limit = thinking_budget(effort), _limit(settings)
    if limit is not None:
        budget = min(budget, max(MIN_BUDGET, limit * 3 // 4))
        if budget >= limit:
            return None
    # Within a turn these models go on thinking only if the turn began with it, which another model's did not.
    return {"type": "enabled", "budget_tokens": budget} if _may_think(conversation) else None


def _may_think(conversation: Conversation) -> bool:
    messages = conversation.messages
    inside = messages[-1]["role"] == "assistant" or messages[-1]["content"][0]["type"] == "tool_result"
    if not inside:
        return True
    turn = messages[-1] if messages[-1]["role"] == "assistant" else messages[-2]
    return turn["content"][0]["type"] in THINKING


def _effort_config(settings: ModelSettings, model: Model) -> dict[str, Any]:
    effort = settings.options.get("reasoning_effort")
    if not isinstance(effort, str) or effort == "none" or not model.decides_how_much_to_think:
        return {}
    return {"effort": model.effort(effort)}


def _limit(settings: ModelSettings) -> int | None:
    limit = settings.options.get("max_output_tokens", settings.options.get("max_tokens"))
    return limit if isinstance(limit, int) else None


def _max_tokens(settings: ModelSettings, model: Model, thinking: Mapping[str, Any] | None) -> int:
    """The caller's limit, or a default with room for the answer beside the thinking."""
    limit = _limit(settings)
    budget = thinking.get("budget_tokens") if thinking else None
    return limit if limit is not None else model.max_tokens + (budget if isinstance(budget, int) else 0)


def _answer_format(settings: ModelSettings, model: Model) -> dict[str, Any] | None:
    if settings.response_schema is None or not model.takes_schema:
        return None
    schema = translated(settings.response_schema)
    return None if schema is None else {"type": "json_schema", "schema": schema}


def _told(schema: Mapping[str, Any]) -> Block:
    """The schema in words, for a model that cannot be held to it."""
    text = json.dumps(schema, ensure_ascii=False, default=dict)
    return {"type": "text", "text": f"Give the final answer as JSON alone, without a fence, by this JSON Schema:\n{text}"}


def _tools(request: ModelRequest, settings: ModelSettings, conversation: Conversation, *, thinks: bool) -> dict[str, Any]:
    """Nothing at all without tools, unless the history holds calls: the API then wants tools to be there."""
    tools = [_tool(tool) for tool in request.tools]
    search = _search_tool(settings, [tool["name"] for tool in tools])
    tools += [search] if search else []
    choice = request.tool_choice if request.tools or request.tool_choice == "none" else "auto"
    if not tools:
        names = sorted({block["name"] for block in _blocks(conversation) if block["type"] == "tool_use"})
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        choice = "none"
    if not tools:
        return {}
    tools[-1] = {**tools[-1], **_EPHEMERAL}
    return {"tools": tools, "tool_choice": _choice(choice, settings, thinks=thinks)}


def _choice(choice: str, settings: ModelSettings, *, thinks: bool) -> dict[str, Any]:
    if choice == "none":
        return {"type": "none"}
    # Whoever thinks cannot be forced to call.
    if choice == "auto" or thinks:
        wire: dict[str, Any] = {"type": "auto"}
    else:
        wire = {"type": "any"} if choice == "required" else {"type": "tool", "name": wire_name(choice)}
    if settings.options.get("parallel_tool_calls") is False:
        wire["disable_parallel_tool_use"] = True
    return wire


def _tool(tool: OfferedTool) -> dict[str, Any]:
    """The API wants an object, and no alternatives at its top; the arguments are checked against the whole schema anyway."""
    schema = {key: value for key, value in tool.parameters.items() if key not in _UNFIT_AT_THE_TOP}
    return {"name": wire_name(tool.name), "description": tool.description, "input_schema": {**schema, "type": "object"}}


def _search_tool(settings: ModelSettings, names: Sequence[str]) -> dict[str, Any] | None:
    search = CAPABILITIES["web_search"]
    if "web_search" not in settings.capabilities:
        return None
    if search["name"] in names:
        log.warning("web_search_left_out", reason="a tool of the caller has its name")
        return None
    options = _mapping(settings.options.get("web_search_options"))
    return {**search, **{key: value for key, value in options.items() if key in _SEARCH_OPTIONS}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _blocks(conversation: Conversation) -> list[Block]:
    return [block for message in conversation.messages for block in message["content"]]


def _prompt(conversation: Conversation, *, cache_history: bool) -> dict[str, Any]:
    """`system` and `messages`, marked at the end of what stays: the first system block, and the history up to now.

    The mark on an earlier message lets a call find what the call before it left behind. With the tools' mark there are
    four at most, which is what the API takes.
    """
    prompt: dict[str, Any] = {}
    if conversation.system:
        # what stands first stays the same for the longest time; memories and a summary behind it may change
        prompt["system"] = [*_marked(conversation.system[:1]), *conversation.system[1:]]
    messages = list(conversation.messages)
    if cache_history:
        for at in {len(messages) - 1, max(len(messages) - 3, 0)}:
            messages[at] = {**messages[at], "content": _marked(messages[at]["content"])}
    prompt["messages"] = messages
    return prompt


def _marked(blocks: Sequence[Block]) -> list[Block]:
    """With a mark on the last block that can bear one."""
    marked = list(blocks)
    for at in reversed(range(len(marked))):
        block = marked[at]
        if block["type"] in _CACHEABLE and (block["type"] != "tool_result" or "content" in block):
            marked[at] = {**block, **_EPHEMERAL}
            break
    return marked
