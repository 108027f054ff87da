"""The outside world of a storm, which counts: the application that hosts the tools, and a model API."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.plans import Plan, Turn
from tests.providers.model_server import DONE, Answer, ModelServer, ReceivedRequest, chunk, frame, json_answer
from tests.tools.webhook_server import Received, Reply, WebhookServer


@dataclass(frozen=True, slots=True)
class Delivery:
    """One webhook request as it came. `at`: seconds of the monotonic clock."""

    call_id: str
    run_id: str
    tool: str
    key: str
    attempt: int
    body: bytes
    at: float


class ToolsApp(WebhookServer):
    """Does at the first delivery of a call what its arguments say, and answers every later one."""

    def __init__(self, give_later: Callable[[str, str, Any], Awaitable[None]]) -> None:
        super().__init__(self._reply)
        self.deliveries: list[Delivery] = []
        self._seen: Counter[str] = Counter()
        self._give_later = give_later
        self._given: set[asyncio.Task[None]] = set()

    async def settled(self) -> None:
        await asyncio.gather(*self._given)

    def _reply(self, request: Received) -> Reply:
        data = request.json["data"]
        call_id, arguments = request.headers["webhook-id"], data["arguments"]
        attempt, key = int(request.headers["rondo-attempt"]), request.headers["idempotency-key"]
        delivery = Delivery(call_id, data["run_id"], data["tool"], key, attempt, request.body, time.monotonic())
        self.deliveries.append(delivery)
        self._seen[call_id] += 1
        delay = arguments["delay_ms"] / 1000
        if self._seen[call_id] == 1 and arguments["act"] != "ok":
            return Reply(503) if arguments["act"] == "503" else Reply(ending="reset", delay_seconds=delay)
        result = {"items": [arguments["n"]]}
        if data["tool"] != "later":
            return Reply(body=result, delay_seconds=delay)
        if self._seen[call_id] == 1:
            task = asyncio.create_task(self._after(delay, data["run_id"], call_id, result))
            self._given.add(task)
        return Reply(202)

    async def _after(self, seconds: float, run_id: str, call_id: str, result: Any) -> None:
        await asyncio.sleep(seconds)
        await self._give_later(run_id, call_id, result)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a model's turn: of which plan, which iteration, and when."""

    key: str
    iteration: int
    at: float


class CountingModel(ModelServer):
    """Plays the plan that the last user message names, the turn after those that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: dict[str, Plan] = {}
        self.asked_for: list[Asked] = []
        self._seen: Counter[tuple[str, int]] = Counter()

    async def _answer(self, request: ReceivedRequest) -> Answer:
        messages = request.json["messages"]
        start = max(place for place, message in enumerate(messages) if message["role"] == "user")
        key = _text(messages[start]["content"]).rpartition(" ")[2]
        turns = sum(message["role"] == "assistant" for message in messages[start:])
        self.requests.clear()  # they would fill the memory of a long soak
        plan = self.plans[key]
        self.asked_for.append(Asked(key, turns + 1, time.monotonic()))
        self._seen[key, turns] += 1
        if turns >= len(plan.turns):
            return json_answer({"error": {"message": "the plan has ended"}}, 400)
        turn = plan.turns[turns]
        is_first = self._seen[key, turns] == 1
        if is_first and turn.act == "overloaded":
            return json_answer({"error": {"message": "overloaded"}}, 503)
        return _streamed(plan, turn, cut=is_first and turn.act == "cut")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else content[0]["text"]


def _streamed(plan: Plan, turn: Turn, *, cut: bool) -> Answer:
    pieces = [turn.text[at : at + plan.chunk_chars] for at in range(0, len(turn.text), plan.chunk_chars)]
    if cut:
        pieces = pieces[: len(pieces) // 2 + 1]
    steps: list[bytes | float] = []
    for piece in pieces:
        steps += [frame(chunk(piece)), plan.delay_ms / 1000]
    if cut:
        return Answer(steps, end="cut")
    for index, call in enumerate(turn.calls):
        function = {"name": call.tool, "arguments": frame(call.arguments)[6:-2].decode()}
        wanted = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        steps.append(frame(chunk(tool_calls=[wanted])))
    steps += [frame(chunk(finish="tool_calls" if turn.calls else "stop")), frame(DONE)]
    return Answer(steps)
