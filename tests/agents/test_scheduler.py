"""Cron on the real database with a clock that the test moves (contract, section 7). Nothing waits.

The processes have a database of their own, so that nobody else settles their slots, and have been told to leave, so that
the runs they make stay queued until the test says that they have ended.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from app import migrations
from app.agents import repository
from app.auth.tokens import DEFAULT_WORKSPACE, ensure_keys
from app.infra.database import connect
from app.infra.settings import Settings
from app.process import Process, open_process
from tests.api import TENANT
from tests.contract.test_recovery import create_database, database_url

NEW_YORK = "America/New_York"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture(scope="module")
async def two(settings: Settings) -> AsyncIterator[tuple[Process, Process]]:
    assert settings.database_url is not None
    await create_database(settings.database_url, "scheduler")
    own = settings.model_copy(update={"database_url": database_url(settings.database_url, "scheduler")})
    database = await connect(str(own.database_url))
    await migrations.upgrade(database.engine)
    await ensure_keys(database.pool, own)
    await database.close()
    async with open_process(own) as one, open_process(own) as other:
        one.supervisor.leave()
        other.supervisor.leave()
        yield one, other


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


class Clock:
    """One agent with cron, and the two processes that look whether it is due."""

    def __init__(self, processes: tuple[Process, Process], agent_id: str) -> None:
        self.processes, self.agent_id = processes, agent_id
        self.pool = processes[0].database.pool

    async def strikes(self, now: datetime, *, both: bool = True) -> None:
        """Both look at the same moment, or now this one and now that."""
        looking = self.processes if both else self.processes[now.minute % 2 :][:1]
        await asyncio.gather(*(process.agents.scheduler.start_due(now) for process in looking))

    async def runs_end(self) -> None:
        await self.pool.execute(
            "UPDATE runs SET status = 'completed' WHERE agent_id = $1 AND status = 'queued'", self.agent_id
        )

    async def firings(self) -> list[Any]:
        """Oldest first."""
        return list(await self.pool.fetch("SELECT * FROM firings WHERE agent_id = $1 ORDER BY slot", self.agent_id))

    async def slots(self, zone: str = "UTC") -> list[str]:
        """Those that were fired, on the wall of a zone."""
        fired = [row["slot"] for row in await self.firings() if row["outcome"] == "fired"]
        return [slot.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z") for slot in fired]

    async def change(self, **values: Any) -> None:
        database = self.processes[0].database
        agent = await repository.find(database.pool, DEFAULT_WORKSPACE, self.agent_id)
        async with database.transaction() as db:
            await repository.update(db, agent, values)


async def agent_at(processes: tuple[Process, Process], moment: datetime, cron: str, **fields: Any) -> Clock:
    """An agent that was made at a moment; those of other tests no longer count."""
    database = processes[0].database
    await database.pool.execute("DELETE FROM agents")
    values = {
        "name": "clock", "system_prompt": "x", "model": "scripted/x", "event_triggers": [], "cron": cron,
        "tenant_type": TENANT["type"], "tenant_id": TENANT["id"], "max_tasks_per_day": 10_000, **fields,
    }  # fmt: skip
    async with database.transaction() as db:
        row = await repository.create(db, DEFAULT_WORKSPACE, values)
    # as if the clock had been there
    await database.pool.execute("UPDATE agents SET cron_after = $2, next_at = $2 WHERE id = $1", row.id, moment)
    return Clock(processes, row.id)


class TestADayOfMinutes:
    async def test_over_a_clock_change_and_an_outage_of_two_hours(self, two: tuple[Process, Process]) -> None:
        start, end = at("2026-11-01T00:00-04:00"), at("2026-11-02T00:00-05:00")
        down, back = at("2026-11-01T00:41-04:00"), at("2026-11-01T01:41-05:00")
        assert back - down == 2 * HOUR
        clock = await agent_at(two, start, "* * * * *", timezone=NEW_YORK)
        now = start
        while now < end:
            now += MINUTE
            if not down <= now < back:
                await clock.strikes(now, both=now.minute % 20 == 0)
                await clock.runs_end()
        minutes = [start + MINUTE * number for number in range(1, 25 * 60 + 1)]
        firings = await clock.firings()
        assert [row["slot"] for row in firings] == [minute for minute in minutes if not down <= minute < back]
        assert {row["outcome"] for row in firings} == {"fired"}
        assert [row["detail"] for row in firings if row["detail"]] == ["stands for 120 missed slots before it too"]
        assert len({row["run_id"] for row in firings}) == len(firings) == 1380


class TestSlots:
    async def test_two_processes_start_one_run_and_a_second_look_none(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-01-05T10:30Z"), "0 9 * * *")
        for _ in range(3):
            await clock.strikes(at("2026-01-06T09:00:03Z"))
        assert await clock.slots() == ["06 09:00+0000"]
        assert await clock.pool.fetchval("SELECT count(*) FROM runs WHERE agent_id = $1", clock.agent_id) == 1

    async def test_a_new_schedule_does_not_fire_for_the_past(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-01-05T10:30Z"), "0 9 * * *")
        await clock.strikes(at("2026-01-05T10:31Z"))
        await clock.strikes(at("2026-01-06T08:59:59Z"))
        assert await clock.firings() == []

    async def test_nor_does_one_that_is_activated_after_a_year(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, datetime.now(UTC) - 365 * DAY, "* * * * *")
        await clock.change(active=False)
        await clock.strikes(datetime.now(UTC))
        await clock.change(active=True)
        await clock.strikes(datetime.now(UTC) - MINUTE)
        assert await clock.firings() == []
        now = datetime.now(UTC)
        await clock.strikes(now + MINUTE)
        assert len(await clock.slots()) == 1
        assert (await clock.firings())[0]["slot"] > now

    async def test_a_day_of_missed_ones_is_one_run_and_then_it_goes_on(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-01-05T10:30Z"), "0 * * * *")
        await clock.strikes(at("2026-01-06T10:40Z"))
        await clock.runs_end()
        await clock.strikes(at("2026-01-06T10:59Z"))
        await clock.strikes(at("2026-01-06T11:00Z"))
        assert await clock.slots() == ["06 10:00+0000", "06 11:00+0000"]

    async def test_a_tick_while_the_last_run_is_active_is_an_overlap(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-01-05T10:00Z"), "*/10 * * * *")
        await clock.strikes(at("2026-01-05T10:10Z"))
        await clock.strikes(at("2026-01-05T10:20Z"))
        await clock.runs_end()
        await clock.strikes(at("2026-01-05T10:30Z"))
        found = [(row["slot"].minute, row["outcome"], row["reason"]) for row in await clock.firings()]
        assert found == [(10, "fired", None), (20, "skipped", "overlap"), (30, "fired", None)]

    async def test_the_ceiling_holds_and_ends_with_the_agents_day(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-07-01T05:00-04:00"), "0 */6 * * *", timezone=NEW_YORK, max_tasks_per_day=1)
        for hour in (6, 12, 18, 24):
            await clock.strikes(at("2026-07-01T00:00-04:00") + hour * HOUR)
            await clock.runs_end()
        found = [(row["outcome"], row["reason"]) for row in await clock.firings()]
        assert found == [("fired", None), ("skipped", "daily_ceiling"), ("skipped", "daily_ceiling"), ("fired", None)]

    async def test_an_agent_that_cannot_run_says_why_and_keeps_its_schedule(self, two: tuple[Process, Process]) -> None:
        clock = await agent_at(two, at("2026-01-05T10:00Z"), "0 * * * *", allowed_tools=["gone"])
        await clock.strikes(at("2026-01-05T11:00Z"))
        await clock.strikes(at("2026-01-05T12:00Z"))
        found = [(row["outcome"], row["reason"]) for row in await clock.firings()]
        assert found == [("skipped", "invalid")] * 2
        assert "'gone' is not registered" in (await clock.firings())[0]["detail"]


class TestClockChanges:
    """New York goes forward on 8 March 2026 at 02:00 and back on 1 November at 02:00."""

    @pytest.mark.parametrize(
        ("cron", "start", "hours", "wanted"),
        [
            ("30 2 * * *", "2026-03-07T12:00-05:00", 40, ["08 03:00-0400", "09 02:30-0400"]),
            ("30 1 * * *", "2026-10-31T12:00-04:00", 40, ["01 01:30-0400", "02 01:30-0500"]),
            (
                "0 * * * *", "2026-11-01T00:10-04:00", 4,
                ["01 01:00-0400", "01 01:00-0500", "01 02:00-0500", "01 03:00-0500"],
            ),
        ],
    )  # fmt: skip
    async def test_a_look_every_ten_minutes_finds(
        self, two: tuple[Process, Process], cron: str, start: str, hours: int, wanted: list[str]
    ) -> None:
        clock = await agent_at(two, at(start), cron, timezone=NEW_YORK)
        for step in range(1, hours * 6 + 1):
            await clock.strikes(at(start) + step * 10 * MINUTE)
            await clock.runs_end()
        assert await clock.slots(NEW_YORK) == wanted
