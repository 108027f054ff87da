"""The caller's application that hosts tools: one small server for all tests, a hook with its own address for each tool.

    async def test_x(api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", {"items": []}, Reply(503))
        ...                                    # runs whose model calls `search`
        assert search.requests[0].json["data"]["arguments"] == {}

An address holds the workspace, so that tests that run at once never see each other's requests.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.tools.webhook_server import Received, Reply, WebhookServer

if TYPE_CHECKING:
    from tests.api import Api

Answer = Any
"""A `Reply`, a function of the request that gives one, or a value that is answered as JSON (a text as it is)."""


@dataclass(frozen=True, slots=True)
class Held(Reply):
    """A reply that is sent once `gate` is set."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)


class _Server(WebhookServer):
    async def _play(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if isinstance(reply, Held):
            await reply.gate.wait()
        return await super()._play(reply, reader, writer)

    async def until(self, reached: Callable[[], bool], seconds: float = 5.0) -> None:
        await self._until(reached, seconds)


class Hook:
    """One tool in the application. `tool` is what its registration answered, with the secret."""

    def __init__(self, server: _Server, path: str, answers: tuple[Answer, ...]) -> None:
        self._server, self.path, self.answers = server, path, answers
        self.tool: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}{self.path}"

    @property
    def secret(self) -> str:
        secret: str = self.tool["secret"]
        return secret

    @property
    def requests(self) -> list[Received]:
        return [request for request in self._server.requests if request.path == self.path]

    @property
    def arguments(self) -> list[dict[str, Any]]:
        """What the tool was called with, in order."""
        return [request.json["data"]["arguments"] for request in self.requests]

    async def received(self, count: int = 1) -> None:
        """Wait until that many requests have come."""
        await self._server.until(lambda: len(self.requests) >= count)

    async def abandoned(self, count: int = 1) -> None:
        """Wait until the service has hung up on that many connections more than before."""
        wanted = self._server.hung_up + count
        await self._server.until(lambda: self._server.hung_up >= wanted)

    def reply_to(self, request: Received) -> Reply:
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1] if self.answers else {}
        if callable(answer):
            answer = answer(request)
        return answer if isinstance(answer, Reply) else Reply(body=answer)


class TestTools:
    """See the module's text. An async context manager."""

    __test__ = False

    def __init__(self) -> None:
        self._server = _Server(self._reply_to)
        self._hooks: dict[str, Hook] = {}

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    def url(self, name: str) -> str:
        """The address of a hook, which may be told its answers later."""
        return f"http://127.0.0.1:{self._server.port}/{name}"

    def hook(self, name: str, *answers: Answer) -> Hook:
        """A new hook of that name: each request gets the next answer, the last one over and over, none at all `{}`."""
        made = self._hooks[f"/{name}"] = Hook(self._server, f"/{name}", answers)
        return made

    async def host(self, api: "Api", name: str, *answers: Answer, **fields: Any) -> Hook:
        """Register a tool of the workspace that is answered here."""
        made = self.hook(f"{api.workspace_id}/{name}", *answers)
        made.tool = await api.tool(name, made.url, **fields)
        return made

    def _reply_to(self, request: Received) -> Reply:
        hook = self._hooks.get(request.path)
        return hook.reply_to(request) if hook else Reply(404, {"error": "no such hook"})


__all__ = ["Answer", "Held", "Hook", "Received", "Reply", "TestTools"]
