"""From what the caller, the session and the settings say to all that is needed to execute a run, as one JSON object.

It is resolved and judged when the run is accepted, so that a run that starts cannot fail for what was wrong before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from app.infra import ids
from app.infra.errors import Invalid
from app.infra.settings import Settings
from app.providers.catalog import Catalog
from app.providers.scripted import scripted_turns
from app.run_options import BUILTINS, AgentOptions, offered_name, resolve, resolve_each
from app.runs.answer import check_schema
from app.runs.distiller import DistilOptions
from app.runs.prompt import NextTurn
from app.runs.redacting import Always, applying
from app.runs.shapes import RunCreate, SessionRunCreate
from app.scope import Scope, axis
from app.sessions.compression import HistoryOptions
from app.sessions.models import Session

_FROM_SETTINGS = (
    "max_iterations", "on_cap", "empty_streak_after", "empty_streak_hint", "result_keys", "max_tool_result_chars",
    "parallel_tools", "empty_nudge", "empty_reply", "deadline_seconds", "max_tokens_total",
)  # fmt: skip
_PLAIN_DEFAULTS: dict[str, Any] = {
    "model_options": {},
    "tools": None,
    "tool_choice": "auto",
    "persist": True,
    "capabilities": [],
    "response_schema": None,
    "on_conflict": "reject",
    "stream": False,
    "background": False,
    "script": None,
    "metadata": {},
}


@dataclass(frozen=True, slots=True)
class Known:
    """What a workspace has registered: its active tools, its providers with their kinds, its active agents as tools."""

    tools: Sequence[str]
    providers: Mapping[str, str]
    agents: frozenset[str] = frozenset()


class Resolved:
    """`row` is what is stored of the run; the rest says how to answer."""

    def __init__(self, row: dict[str, Any], options: Mapping[str, Any]) -> None:
        self.row = row
        self.stream: bool = options["stream"]
        self.background: bool = options["background"]
        self.on_conflict: str = options["on_conflict"]


class Resolver:
    """Resolves with the settings and the providers of this process."""

    def __init__(self, settings: Settings, catalog: Catalog, always: Always) -> None:
        self._settings, self._catalog, self._always = settings, catalog, always

    def in_session(self, session: Session, wanted: SessionRunCreate, known: Known) -> Resolved:
        """Raises Invalid for what cannot work. A session of an agent comes with what the agent says in its `config`."""
        named = wanted.model_dump(mode="json", exclude_unset=True)
        if session.agent_id is not None and named.get("tools") is None:
            named.pop("tools", None)  # null: all that may be had, which is what the agent allows
        sources = [named, *_sources_of(session)]
        options = self._options(sources, known)
        options["history"] = self._history(sources, options["models"]).as_json()
        configured = (session.config or {}).get("context") or {}
        options["context"] = {**configured, **(session.context or {}), **(named.get("context") or {})}
        row = self._row(session.workspace_id, options, session_id=session.id, agent_id=session.agent_id)
        row |= {name: getattr(session, name) for name in _AXIS_COLUMNS}
        row["request"] |= {"input": named["input"], "messages": None, "system_prompt": session.system_prompt}
        row["request"]["redaction"] = applying(session.redaction, named.get("redaction"), self._always, session.has_vault)
        return Resolved(row, options)

    def history_of(self, session: Session) -> HistoryOptions:
        """How a session's history is kept, apart from any run."""
        return self._history(_sources_of(session), ())

    def next_turn(self, session: Session, given: str | None) -> NextTurn:
        """The turn of a run that would start now, as far as its prompt goes."""
        sources = _sources_of(session)
        models = resolve("model", sources, self._settings.model) or ""
        memory = self._memory(sources)
        return NextTurn(
            session.workspace_id,
            Scope.model_validate({name: axis(session, name) for name in _AXES}),
            session.id,
            models if isinstance(models, str) else models[0],
            session.system_prompt,
            memory["max_tokens"] if memory["read"] else 0,
            given,
        )

    def run_of(self, session: Session, tools: Sequence[str]) -> dict[str, Any]:
        """What a run's row would say of the session to whoever opens these tools for it."""
        row = {name: getattr(session, name) for name in ("workspace_id", "agent_id", *_AXIS_COLUMNS)}
        request = {"tools": list(tools), "context": {}, "memory": self._memory(_sources_of(session))}
        vault = session.id if session.has_vault else None
        return row | {"id": None, "session_id": session.id, "request": request, "vault": vault}

    def redaction_of(self, session: Session) -> dict[str, Any] | None:
        """What is redacted in a session, apart from any run; None where nothing is."""
        return applying(session.redaction, None, self._always, session.has_vault)

    def tools_of(self, session: Session) -> list[str] | None:
        """The tools that a session names; None is all that are active."""
        names: list[str] | None = resolve("tools", _sources_of(session), None)
        return names

    def _history(self, sources: Sequence[dict[str, Any]], models: Sequence[str]) -> HistoryOptions:
        """`models` are the run's, which summarise where neither a model for that nor the session's is named."""
        settings = self._settings
        defaults = {
            "token_budget": settings.history_token_budget,
            "keep_recent_turns": settings.history_keep_recent_turns,
            "summary_model": settings.history_summary_model,
        }
        found = resolve_each("history", sources, defaults)
        asked = found["summary_model"] or resolve("model", sources[-2:], None) or models
        return HistoryOptions(
            found["token_budget"],
            found["keep_recent_turns"],
            (asked,) if isinstance(asked, str) else tuple(asked),
            tuple(sources[-1].get("script") or ()),
        )

    def distil_options(self, session: Session, last_models: Sequence[str]) -> DistilOptions:
        """By whom notes are drawn from a session: a model for that or for summaries, else its own, else its last run's.

        A scripted model answers for a run what its script says; notes it draws only where it is named for that.
        """
        settings, sources = self._settings, _sources_of(session)
        summaries = resolve_each("history", sources, {"summary_model": settings.history_summary_model})
        named = resolve_each("memory", sources, {"model": settings.memory_model})["model"] or summaries["summary_model"]
        models = [named] if named else _as_list(resolve("model", sources, None) or last_models or settings.model or ())
        return DistilOptions(
            self._memory(sources)["write"],
            tuple(model for model in models if named or not model.startswith("scripted/")),
            tuple(sources[-1].get("script") or ()),
            session.system_prompt,
        )

    def _memory(self, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
        settings = self._settings
        defaults = {"read": settings.memory_read, "write": settings.memory_write, "max_tokens": settings.memory_max_tokens}
        return resolve_each("memory", sources, defaults)

    def alone(self, workspace_id: str, wanted: RunCreate, known: Known) -> Resolved:
        """The same for a run of no session, of which nothing is persisted."""
        if wanted.scope.has_alias_conflict():
            raise Invalid("Two axes of one scope have the same type.", code="alias_conflict")
        named = wanted.model_dump(mode="json", exclude_unset=True)
        options = self._options([named], known)
        options |= {"context": named.get("context") or {}, "persist": False}
        row = self._row(workspace_id, options, session_id=None, agent_id=None)
        row |= wanted.scope.as_columns()
        row["request"] |= {key: named.get(key) for key in ("input", "messages", "system_prompt")}
        row["request"]["redaction"] = applying(None, named.get("redaction"), self._always, has_vault=False)
        return Resolved(row, options)

    def of_agent(
        self, agent: AgentOptions, scope: Mapping[str, str | None], given: Any, context: Mapping[str, Any], known: Known
    ) -> dict[str, Any]:
        """The row of a run of an agent without a session: of its own accord, or as the child of another run.

        `scope` are the columns of the three axes, `given` is the first user's message.
        """
        options = self._options([dict(agent.fields), {"empty_nudge": False}], known)
        options |= {"context": {**(agent.fields.get("context") or {}), **context}, "persist": False}
        row = self._row(agent.workspace_id, options, session_id=None, agent_id=agent.id) | dict(scope)
        row["request"] |= {"input": given, "messages": None, "system_prompt": agent.system_prompt}
        row["request"]["redaction"] = applying(agent.redaction, None, self._always, has_vault=False)
        return row

    def _options(self, sources: Sequence[dict[str, Any]], known: Known) -> dict[str, Any]:
        options = {name: resolve(name, sources, default) for name, default in _PLAIN_DEFAULTS.items()}
        for name in _FROM_SETTINGS:
            default = getattr(self._settings, name)
            options[name] = resolve(name, sources, list(default) if isinstance(default, tuple) else default)
        models = resolve("model", sources, self._settings.model)
        if models is None:
            raise _invalid("model", "no model is named, here, on the session or by RONDO_MODEL", "model_required")
        options["models"] = _as_list(models)
        self._catalog.check(options["models"], options["model_options"], options["capabilities"], known.providers)
        options["tools"] = _tools(options["tools"], known)
        _check_choice(options["tool_choice"], list(map(offered_name, options["tools"])))
        if options["response_schema"] is not None:
            check_schema(options["response_schema"])
        options["script"] = _script(options["script"], options["models"])
        options["memory"] = self._memory(sources)
        return options

    def _row(
        self, workspace_id: str, options: dict[str, Any], *, session_id: str | None, agent_id: str | None
    ) -> dict[str, Any]:
        request = {name: value for name, value in options.items() if name not in _NOT_STORED}
        return {
            "id": ids.new(ids.RUN),
            "workspace_id": workspace_id,
            "session_id": session_id,
            "agent_id": agent_id,
            "parent_run_id": None,
            "model": options["models"][0],
            "metadata": options["metadata"],
            "request": request,
            "depth": 0,
            "join_key": None,
            "vault": None,
        }


_AXES = ("tenant", "subject", "member")
_AXIS_COLUMNS = tuple(f"{name}_{part}" for name in _AXES for part in ("type", "id"))
_OWN = ("model", "tools", "history", "memory")
_NOT_STORED = frozenset({"stream", "background", "on_conflict", "metadata"})


def _sources_of(session: Session) -> list[dict[str, Any]]:
    """Where a session names options: its own fields, and its `config`."""
    own = {name: getattr(session, name) for name in _OWN if getattr(session, name) is not None}
    return [own, session.config or {}]


def _as_list(models: str | Sequence[str]) -> list[str]:
    return [models] if isinstance(models, str) else list(models)


def _invalid(field: str, reason: str, code: str | None = None) -> Invalid:
    return Invalid(f"{field}: {reason}.", code=code, errors=[(("body", field), reason)])


def _tools(named: list[str] | None, known: Known) -> list[str]:
    if named is None:
        return list(known.tools)
    check_tools("tools", named, known)
    return list(dict.fromkeys(named))


def check_tools(field: str, named: Sequence[str], known: Known) -> None:
    """Raises Invalid for a name that is no active tool, no `agent:NAME` of an active agent and no tool of our own, and for
    two tools that a model could not tell apart."""
    offered: dict[str, str] = {}
    for name in named:
        if name not in known.tools and name not in known.agents and name not in BUILTINS:
            raise _invalid(field, f"'{name}' is not registered or not active", "unknown_tool")
        if offered.setdefault(offered_name(name), name) != name:
            raise _invalid(field, f"'{name}' and '{offered[offered_name(name)]}' would have one name", "tool_name_taken")


def _check_choice(choice: str, tools: Sequence[str]) -> None:
    if choice not in ("auto", "none", "required") and choice not in tools:
        raise _invalid("tool_choice", f"'{choice}' is neither auto, none, required nor an offered tool", "unknown_tool")


def _script(script: list[Any] | None, models: Sequence[str]) -> list[Any] | None:
    if not any(model.startswith("scripted/") for model in models):
        return None
    try:
        scripted_turns(script or [])
    except ValidationError as error:
        places = [(("body", "script", *item["loc"]), item["msg"]) for item in error.errors()]
        raise Invalid("The script is not valid.", errors=places) from None
    return script or []


def scope_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The three axes of a run's row, as webhooks get them."""
    return {name: axis(run, name) for name in _AXES}
