"""A storm: sessions that start run after run while everything under them is killed, paused and cut; then the evidence."""

import asyncio
import shutil
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.clients import Client, Refused, Seen, events_of
from tests.faults.evidence import Evidence, RunStory
from tests.faults.faults import Faults
from tests.faults.outside import CountingModel, ToolsApp
from tests.faults.plans import TOOLS, Planner
from tests.faults.playing import Player
from tests.faults.processes import Fleet

_READERS = 8


@dataclass(frozen=True, slots=True)
class Weather:
    """How hard it blows. `limit_seconds`: how long a run may take from its acceptance to its end."""

    seed: int
    seconds: float
    kinds: tuple[str, ...]
    sessions: int = 8
    limit_seconds: float = 90.0
    logs: Path | None = None
    """Where the logs of the processes are kept."""


class Storm:
    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._over = False

    async def run(self) -> Evidence:
        """Blow, calm down, and collect what is left."""
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            self._model = await stack.enter_async_context(CountingModel())
            self._tools = await stack.enter_async_context(ToolsApp(self._give_later))
            self._fleet = await stack.enter_async_context(Fleet(self._model.base_url))
            urls = [f"http://127.0.0.1:{process.door.port}" for process in self._fleet.processes if process.door]
            self._client = Client(urls, self._weather.seed)
            stack.push_async_callback(self._client.close)
            self._player = Player(self._client, self._weather.limit_seconds)
            await self._register_tools()
            faults = Faults(self._fleet, self._weather.kinds, self._weather.seed)
            async with asyncio.TaskGroup() as group:
                sessions = [group.create_task(self._session(number)) for number in range(self._weather.sessions)]
                await faults.rage(self._weather.seconds)
                self._over = True
            await self._tools.settled()
            evidence = await self._collect([session.result() for session in sessions])
            evidence.faults, evidence.seconds = faults.happened, time.monotonic() - started
            return evidence

    async def _give_later(self, run_id: str, call_id: str, result: Any) -> None:
        await self._player.give_later(run_id, call_id, result)

    async def _register_tools(self) -> None:
        parameters = {"type": "object", "properties": {}}
        for name, fields in TOOLS.items():
            shown = {"description": f"The tool {name}.", "parameters": parameters, "url": self._tools.url, **fields}
            await self._client.ask("PUT", f"/v1/tools/{name}", shown)

    async def _session(self, number: int) -> str:
        """Batch after batch, as long as the storm lasts."""
        key = f"{self._weather.seed}-session-{number}"
        body = {"tenant": {"type": "organization", "id": "storm"}, "model": "scripted/storm"}
        session_id: str = (await self._client.ask("POST", "/v1/sessions", body, key))["id"]
        for batch in Planner(self._weather.seed, number).batches():
            if self._over:
                break
            self._model.plans |= {plan.key: plan for plan in batch}
            stories = await asyncio.gather(*(self._player.play(session_id, plan) for plan in batch))
            if any(story.is_late for story in stories):
                break  # what else would be refused there says nothing new
        return session_id

    # ---- afterwards

    async def _collect(self, sessions: list[str]) -> Evidence:
        places = asyncio.Semaphore(_READERS)

        async def look(story: RunStory) -> None:
            async with places:
                await self._look_at(story)

        await asyncio.gather(*(look(story) for story in self._player.stories if story.id))
        stuck = dict(
            pair
            for pair in await asyncio.gather(*map(self._try_session, range(len(sessions)), sessions))
            if pair is not None
        )
        for process in self._fleet.processes:
            await process.scrape()
            if self._weather.logs is not None:
                shutil.copy(process.log, self._weather.logs)
        return Evidence(
            seed=self._weather.seed,
            stories=self._player.stories,
            deliveries=self._tools.deliveries,
            asked=self._model.asked_for,
            messages={session_id: await self._all(f"/v1/sessions/{session_id}/messages") for session_id in sessions},
            listed=await self._all("/v1/runs"),
            stuck=stuck,
            told=sum((process.told() for process in self._fleet.processes), Counter()),
            ends=sum((process.ends for process in self._fleet.processes), Counter()),
            last_words=[words for process in self._fleet.processes for words in process.last_words],
            refused_writes=sum(process.refused for process in self._fleet.processes),
            unforeseen=self._client.unforeseen,
            repeated=self._client.repeated,
            longest={what: max(process.longest[what] for process in self._fleet.processes) for what in ("start", "end")},
        )

    async def _look_at(self, story: RunStory) -> None:
        story.run = await self._client.ask("GET", f"/v1/runs/{story.id}")
        if story.run["finished_at"] is not None:
            story.fresh = await self._events(story.id)
        story.trace = (await self._client.ask("GET", f"/v1/runs/{story.id}/trace"))["iterations"]

    async def _events(self, run_id: str) -> list[Seen]:
        async with self._client.any().stream("GET", f"/v1/runs/{run_id}/events") as response:
            if response.status_code != 200:
                raise Refused(response.status_code, (await response.aread()).decode())
            return [event async for event in events_of(response)]

    async def _try_session(self, number: int, session_id: str) -> tuple[str, str] | None:
        """A further run, which must complete; gives the session and what happened instead."""
        plan = Planner(self._weather.seed, number).last()
        try:
            async with asyncio.timeout(self._weather.limit_seconds):
                run = await self._client.ask("POST", f"/v1/sessions/{session_id}/runs", plan.body(), plan.key)
        except TimeoutError:
            return session_id, "a further run did not end"
        except Refused as refused:
            return session_id, str(refused)
        return None if run["status"] == "completed" else (session_id, f"a further run ended as {run['status']}")

    async def _all(self, path: str) -> list[dict[str, Any]]:
        """Every page of a list."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await self._client.ask("GET", f"{path}?limit=200{cursor}")
            found += page["data"]
            if page["next"] is None:
                return found
            cursor = f"&after={page['next']}"
