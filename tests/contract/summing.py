"""A service whose chat and summarising models are made of bytes, with a worker beside it where a test wants one."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from app.infra.settings import Settings
from app.process import Process, open_process
from app.worker import new_worker
from tests.api import Api
from tests.providers.model_server import DONE, Answer, ModelServer, ReceivedRequest, chunk, json_answer, sse

SUMMARY = "They look for a flat in Vigo; the budget is 190,000 euros."


def says(text: str) -> Answer:
    return sse(chunk(text, role="assistant"), chunk(finish="stop"), DONE)


class Model(ModelServer):
    """Answers every request by `reply`, a function of its body, in any order."""

    def __init__(self, reply: Callable[[Any], Any]) -> None:
        super().__init__()
        self.reply = reply
        self.gate: asyncio.Event | None = None

    async def _answer(self, request: ReceivedRequest) -> Answer:
        if self.gate is not None:
            await self.gate.wait()
        answer = self.reply(request.json)
        return answer if isinstance(answer, Answer) else says(answer)

    @property
    def bodies(self) -> list[Any]:
        return [request.json for request in self.requests]

    @property
    def materials(self) -> list[Any]:
        """What a summariser was given, as JSON, in the order of asking."""
        return [json.loads(body["messages"][-1]["content"]) for body in self.bodies]


def failing_model(body: Any) -> Answer:
    return json_answer({"error": {"message": "no"}}, 400)


class Stand:
    """A workspace on the service, `openai/chat` for its runs and `lab/sum` for its summaries."""

    def __init__(self, api: Api, chat: Model, summariser: Model) -> None:
        self.api, self.chat, self.summariser = api, chat, summariser

    async def session(self, budget: int = 200, keep: int = 2, **fields: Any) -> str:
        history = {
            "token_budget": budget,
            "keep_recent_turns": keep,
            "summary_model": "lab/sum",
            **fields.pop("history", {}),
        }
        return await self.api.new_session(**{"model": "openai/chat", "history": history, **fields})

    async def say(self, session: str, text: str, **fields: Any) -> Any:
        """One turn; gives the body that the chat model received."""
        run = await self.api.post(f"/v1/sessions/{session}/runs", {"input": text, **fields}, 200)
        assert run["status"] == "completed", run
        return self.chat.bodies[-1]

    async def turns(self, session: str, count: int, words: int = 30, first: int = 1) -> None:
        """Turns of about `words` tokens each way, each with a word of its own (`marker7`)."""
        for number in range(first, first + count):
            await self.say(session, f"marker{number} " + "word " * words)

    async def parts(self, session: str, input: str = "next") -> dict[str, Any]:
        shown = await self.api.get(f"/v1/sessions/{session}/prompt?input={input}")
        return {part["kind"]: part["content"] for part in shown["parts"]}

    async def summarised(self, session: str, times: int = 1) -> None:
        """Wait until the summariser was asked that often and what it said is there."""
        await until(lambda: self._is_summarised(session, times))

    async def _is_summarised(self, session: str, times: int) -> bool:
        return len(self.summariser.requests) >= times and "summary" in await self.parts(session)


async def until(reached: Callable[[], Awaitable[bool]], seconds: float = 8.0) -> None:
    async with asyncio.timeout(seconds):
        while not await reached():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[Process]:
    """A worker in this process."""
    async with open_process(settings) as process:
        worker = new_worker(process, handle_signals=False)
        task = asyncio.create_task(worker.async_run())
        try:
            yield process
        finally:
            await worker.close()
            await task
