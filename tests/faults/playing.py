"""Plays plans: starts each run once, follows it to its end, decides what it waits for, cancels it where that is planned."""

import asyncio
import time
from random import Random
from typing import Any

import httpx

from tests.faults.clients import Client, Follower, Refused
from tests.faults.evidence import RunStory
from tests.faults.plans import Plan


class Player:
    def __init__(self, client: Client, limit_seconds: float) -> None:
        self._client = client
        self._limit_seconds = limit_seconds
        self.stories: list[RunStory] = []
        self._by_run: dict[str, RunStory] = {}

    async def play(self, session_id: str, plan: Plan) -> RunStory:
        """One run from its start to its end, or up to the limit, and what was seen of it."""
        story = RunStory(plan, session_id=session_id if plan.in_session else None)
        self.stories.append(story)
        await asyncio.sleep(plan.starts_after)
        try:
            async with asyncio.timeout(self._limit_seconds):
                await self._start_and_follow(story)
        except TimeoutError:
            story.is_late = True
        except Refused as refused:
            story.refusals.append(str(refused))
        return story

    async def _start_and_follow(self, story: RunStory) -> None:
        random = Random(story.plan.key)
        followers = [Follower(self._client, random) for _ in range(2 if random.random() < 0.3 else 1)]
        story.streams = [follower.seen for follower in followers]
        path = f"/v1/sessions/{story.session_id}/runs" if story.session_id else "/v1/runs"
        tasks: list[asyncio.Task[Any]] = []
        if story.plan.how == "wait":
            tasks.append(asyncio.create_task(self._client.ask("POST", path, story.plan.body(), story.plan.key)))
        deciding = asyncio.create_task(self._decide(story, followers[0]))
        try:
            await self._start(story, path, followers[0], tasks)
            self._by_run[story.id] = story
            if story.plan.cancelled_after is not None:
                tasks.append(asyncio.create_task(self._cancel(story, story.plan.cancelled_after)))
            tasks += [asyncio.create_task(follower.follow(story.id)) for follower in followers]
            await asyncio.gather(*tasks)
        finally:
            if deciding.done():
                story.refusals.append(f"nobody decides any more: {deciding.exception()!r}")
            for task in (deciding, *tasks):
                task.cancel()
            await asyncio.gather(deciding, *tasks, return_exceptions=True)
            story.connections = sum(follower.connections for follower in followers)
            story.refusals += [refusal for follower in followers for refusal in follower.refusals]

    # ---- starting

    async def _start(self, story: RunStory, path: str, follower: Follower, tasks: list[asyncio.Task[Any]]) -> None:
        match story.plan.how:
            case "background":
                story.id = (await self._client.ask("POST", path, story.plan.body(), story.plan.key))["id"]
            case "stream":
                await self._stream(story, path, follower)
            case _:
                await self._find(story, tasks[0])

    async def _find(self, story: RunStory, asking: "asyncio.Task[Any]") -> None:
        """The run of a caller who still waits for its answer, for those who follow it meanwhile."""
        query = f"?session_id={story.session_id}" if story.session_id else ""
        while not story.id:
            if asking.done():
                story.id = asking.result()["id"]
                return
            runs = (await self._client.ask("GET", f"/v1/runs{query}"))["data"]
            story.id = next((run["id"] for run in runs if run["metadata"].get("key") == story.plan.key), "")
            await self._client.breathe()

    async def _stream(self, story: RunStory, path: str, follower: Follower) -> None:
        """Start and follow in one, until that stream ends, however it does."""
        headers = {"Idempotency-Key": story.plan.key}
        while not story.id:
            try:
                async with self._client.any().stream("POST", path, json=story.plan.body(), headers=headers) as response:
                    if response.status_code == 200:
                        story.id = response.headers["Rondo-Run"]
                        self._by_run[story.id] = story
                        await follower.take(response)
                        return
                    refused = Refused(response.status_code, (await response.aread()).decode())
                    if not self._client.may_pass(refused):
                        raise refused
            except httpx.TransportError:
                self._client.repeated += 1
            await self._client.breathe()

    # ---- what is asked of a run under way

    async def _cancel(self, story: RunStory, seconds: float) -> None:
        await asyncio.sleep(seconds)
        story.cancelled = await self._client.ask("POST", f"/v1/runs/{story.id}/cancel")

    async def _decide(self, story: RunStory, follower: Follower) -> None:
        """Decide about every call that waits for an approval, once for each time that the run begins to wait."""
        read = 0
        while True:
            events = follower.seen[read:]
            read += len(events)
            for event in events:
                if event.type == "run.waiting":
                    await self._approve(story, event.data["pending"])
            follower.changed.clear()
            if read == len(follower.seen):
                await follower.changed.wait()

    async def _approve(self, story: RunStory, pending: list[dict[str, Any]]) -> None:
        waiting = [item for item in pending if item["reason"] == "approval"]
        if not waiting:
            return
        decisions = [decision_about(item) for item in waiting]
        for item in waiting:
            story.decided_at[item["call_id"]] = time.monotonic()
        await self._post(story.id, "approvals", {"decisions": decisions}, {item["call_id"] for item in waiting})

    async def give_later(self, run_id: str, call_id: str, result: Any) -> None:
        """The result of a call that was answered 202."""
        try:
            async with asyncio.timeout(self._limit_seconds):
                await self._post(run_id, "tool-results", {"results": [{"call_id": call_id, "result": result}]}, {call_id})
        except TimeoutError:
            self._story_of(run_id).refusals.append(f"no result was taken for {call_id}")

    async def _post(self, run_id: str, what: str, body: Any, call_ids: set[str]) -> None:
        """Until it is taken, or was taken by an earlier request whose answer was lost, or the run has ended."""
        while True:
            try:
                await self._client.ask("POST", f"/v1/runs/{run_id}/{what}", body)
                return
            except Refused as refused:
                run = await self._client.ask("GET", f"/v1/runs/{run_id}")
                if refused.code != "pending_mismatch":
                    self._story_of(run_id).refusals.append(str(refused))
                    return
                if run["finished_at"] is not None:
                    return
                waits = {item["call_id"] for item in run["pending"]}
                if what == "approvals" and not (waits & call_ids):
                    return
            await self._client.breathe()

    def _story_of(self, run_id: str) -> RunStory:
        return self._by_run[run_id]


def decision_about(item: dict[str, Any]) -> dict[str, Any]:
    if item["arguments"]["decision"] == "approve":
        return {"call_id": item["call_id"], "decision": "approve"}
    return {"call_id": item["call_id"], "decision": "reject", "reason": "The storm says no."}
