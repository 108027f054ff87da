"""The ports of one run, joined: the hooks of the operator outside, the redaction around the loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.infra.database import Pool
from app.loop.events import Event
from app.loop.ports import Emit, OfferedTool, ParsedAnswer, Provider, Tools
from app.redaction.opened import OpenedVault
from app.redaction.ports import ReopenedProvider, RestoredProvider
from app.redaction.rewriting import redacted_parse
from app.redaction.tool_port import RedactedTools
from app.runs.answer import answer_parser
from app.runs.hooks import HookedProvider, HookedTools, Hooks
from app.runs.lease import Lease
from app.runs.metering import MeteredProvider
from app.runs.sent_once import SentOnce
from app.runs.shapes import run_json


class RunTools(Tools, Protocol):
    """The Tools port of one run, with what is offered to its model."""

    offered: tuple[OfferedTool, ...]
    at_most_once: frozenset[str]
    redactions: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Joined:
    """What the loop is given. `offered` is checked with the values that a tool would get."""

    provider: Provider
    tools: Tools
    offered: tuple[OfferedTool, ...]


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins the ports of one run. `opened` is its vault, None where nothing is redacted."""

    run: Mapping[str, Any]
    opened: OpenedVault | None
    hooks: Hooks | None
    emit: Emit

    def join(self, model: Provider, toolbox: RunTools, pool: Pool, lease: Lease) -> Joined:
        provider: Provider = MeteredProvider(model)
        tools: Tools = toolbox
        if toolbox.at_most_once:
            tools = SentOnce(pool, toolbox, toolbox.at_most_once, lease)
        if self.hooks is not None:
            provider = self._hooked(self.hooks, provider)
            tools = HookedTools(self.hooks, tools, run_json(self.run))
        if self.opened is None:
            return Joined(provider, tools, toolbox.offered)
        redacted = RedactedTools(tools, toolbox, self.opened)
        return Joined(provider, redacted, redacted.offered)

    def _hooked(self, hooks: Hooks, provider: Provider) -> Provider:
        shown = run_json(self.run)
        if self.opened is None:
            return HookedProvider(hooks, provider, shown, self.emit)
        kept: list[Event] = []
        hooked = HookedProvider(hooks, RestoredProvider(provider, self.opened), shown, kept.append)
        return ReopenedProvider(hooked, self.opened, kept, self.emit)

    def parser(self) -> Any:
        """Reads the final answer where it shall be JSON; None where it need not."""
        wanted = self.run["request"]["response_schema"]
        if wanted is None:
            return None
        if self.opened is None:
            return answer_parser(wanted)
        checked = answer_parser(self.opened.restore_json(wanted).value)

        def plain(text: str) -> ParsedAnswer:
            return answer_parser({})(text)

        return redacted_parse(checked, plain, self.opened)
