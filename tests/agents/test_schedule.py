"""When a cron expression is due (contract, section 7): pure, on a clock that is a value."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from app.agents.schedule import COUNTED, BadSchedule, Schedule, read_schedule

NEW_YORK, BERLIN, WARSAW, SANTIAGO = "America/New_York", "Europe/Berlin", "Europe/Warsaw", "America/Santiago"
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def slots(expression: str, zone: str, start: str, end: str) -> list[str]:
    """All slots in (start, end], on the wall of the zone."""
    schedule, moment, found = Schedule(expression, zone), at(start), []
    while (slot := schedule.next_after(moment)) is not None and slot <= at(end):
        found.append(slot.astimezone(ZoneInfo(zone)).strftime("%d %H:%M%z"))
        moment = slot
    return found


class TestClocksGoForward:
    """New York, 8 March 2026: from 02:00 to 03:00."""

    START, END = "2026-03-07T12:00-05:00", "2026-03-09T12:00-04:00"

    def test_a_time_in_the_gap_is_due_at_its_end(self) -> None:
        assert slots("30 2 * * *", NEW_YORK, self.START, self.END) == ["08 03:00-0400", "09 02:30-0400"]

    def test_several_times_in_the_gap_are_one_and_so_is_its_end(self) -> None:
        assert slots("*/15 2,3 * * *", NEW_YORK, self.START, "2026-03-08T03:20-04:00") == ["08 03:00-0400", "08 03:15-0400"]

    def test_a_midnight_that_does_not_exist_is_one_o_clock(self) -> None:
        assert slots("0 0 * * *", SANTIAGO, "2026-09-05T12:00-04:00", "2026-09-07T12:00-03:00") == [
            "06 01:00-0300",
            "07 00:00-0300",
        ]

    def test_midnight_is_not_touched_by_a_change_at_two(self) -> None:
        found = slots("0 0 * * *", WARSAW, "2026-03-28T12:00+01:00", "2026-03-30T12:00+02:00")
        assert found == ["29 00:00+0100", "30 00:00+0200"]

    def test_the_hours_that_pass_are_counted(self) -> None:
        found = slots("30 * * * *", NEW_YORK, "2026-03-08T00:00-05:00", "2026-03-08T05:00-04:00")
        assert found == ["08 00:30-0500", "08 01:30-0500", "08 03:30-0400", "08 04:30-0400"]


class TestClocksGoBack:
    """New York, 1 November 2026: from 02:00 to 01:00."""

    START, END = "2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00"

    def test_a_fixed_time_is_due_once(self) -> None:
        assert slots("30 1 * * *", NEW_YORK, self.START, self.END) == ["01 01:30-0400"]

    def test_it_is_due_once_also_when_reckoned_from_within_the_second_hour(self) -> None:
        assert slots("30 1 * * *", NEW_YORK, "2026-11-01T01:10-05:00", "2026-11-02T23:00-05:00") == ["02 01:30-0500"]

    def test_every_hour_has_25_slots(self) -> None:
        found = slots("0 * * * *", NEW_YORK, "2026-10-31T23:59:59-04:00", "2026-11-01T23:59:59-05:00")
        assert len(found) == 25
        assert found[1:4] == ["01 01:00-0400", "01 01:00-0500", "01 02:00-0500"]

    def test_every_half_hour_is_due_in_both_hours(self) -> None:
        found = slots("*/30 * * * *", NEW_YORK, "2026-11-01T00:40-04:00", "2026-11-01T02:10-05:00")
        assert found == ["01 01:00-0400", "01 01:30-0400", "01 01:00-0500", "01 01:30-0500", "01 02:00-0500"]

    def test_all_hours_by_number_are_every_hour(self) -> None:
        assert slots("0 0-23 * * *", NEW_YORK, self.START, self.END) == slots("0 * * * *", NEW_YORK, self.START, self.END)


class TestWhatIsDue:
    def test_nothing_before_the_first_slot(self) -> None:
        assert Schedule("0 9 * * *", "UTC").due(at("2026-01-05T10:30Z"), at("2026-01-06T08:59:59Z")) is None

    def test_the_slot_itself_at_its_very_moment_and_once(self) -> None:
        schedule, nine = Schedule("0 9 * * *", "UTC"), at("2026-01-06T09:00Z")
        found = schedule.due(at("2026-01-05T10:30Z"), nine)
        assert (found.slot, found.missed) == (nine, 0)
        assert schedule.due(nine, at("2026-01-06T23:00Z")) is None

    def test_several_missed_ones_are_the_latest_and_are_counted(self) -> None:
        found = Schedule("*/10 * * * *", "UTC").due(at("2026-01-05T10:00Z"), at("2026-01-05T12:05Z"))
        assert (found.slot, found.missed) == (at("2026-01-05T12:00Z"), 11)

    def test_a_year_of_minutes_is_not_walked_through(self) -> None:
        found = Schedule("* * * * *", BERLIN).due(at("2025-01-05T10:00Z"), at("2026-01-05T12:00:30Z"))
        assert (found.slot, found.missed) == (at("2026-01-05T12:00Z"), COUNTED)

    def test_a_fixed_time_is_due_within_the_hour_that_comes_twice(self) -> None:
        schedule = Schedule("30 1 * * *", NEW_YORK)
        found = schedule.due(at("2026-10-31T12:00-04:00"), at("2026-11-01T01:10-05:00"))
        assert found.slot == at("2026-11-01T01:30-04:00")
        assert schedule.due(found.slot, at("2026-11-01T01:45-05:00")) is None

    @pytest.mark.parametrize("zone", [NEW_YORK, SANTIAGO, "Australia/Lord_Howe", "UTC"])
    @pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "15 1,2 * * *", "*/20 1-3 * * *", "45 * * * *"])
    @pytest.mark.parametrize("day", ["2026-03-07", "2026-04-04", "2026-09-05", "2026-10-03", "2026-10-31"])
    def test_looking_back_finds_what_looking_ahead_does(self, expression: str, zone: str, day: str) -> None:
        schedule, start = Schedule(expression, zone), at(f"{day}T00:00Z")
        ahead = [start]
        while ahead[-1] < start + 2 * DAY:
            ahead.append(schedule.next_after(ahead[-1]))
        for earlier, later in pairwise(ahead):
            assert later > earlier
            assert schedule.due(start, later).slot == later
            if earlier > start:
                assert schedule.due(start, later - timedelta(seconds=1)).slot == earlier


class TestADayOfMinutes:
    def test_over_a_clock_change_and_an_outage_of_two_hours(self) -> None:
        """A worker that looks once a minute, but for two hours on either side of the change."""
        schedule = Schedule("* * * * *", NEW_YORK)
        start, end = at("2026-11-01T00:00-04:00"), at("2026-11-02T00:00-05:00")
        down = at("2026-11-01T00:40:30-04:00"), at("2026-11-01T01:40:30-05:00")
        fired, now = [start], start + timedelta(seconds=20)
        while now < end:
            now += timedelta(minutes=1)
            if down[0] <= now < down[1]:
                continue
            if (found := schedule.due(fired[-1], now)) is not None:
                fired.append(found.slot)
        minutes = [start + timedelta(minutes=number) for number in range(1, 25 * 60 + 1)]
        assert fired[1:] == [minute for minute in minutes if not down[0] <= minute < at("2026-11-01T01:41-05:00")]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "expression", ["", "* * * *", "* * * * * *", "60 * * * *", "@daily", "x * * * *", "*/0 * * * *"]
    )
    def test_what_cannot_be_read(self, expression: str) -> None:
        with pytest.raises(BadSchedule):
            read_schedule(expression, "UTC", at("2026-01-01T00:00Z"))

    @pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *"])
    def test_what_never_comes(self, expression: str) -> None:
        with pytest.raises(BadSchedule):
            read_schedule(expression, "Europe/Madrid", at("2026-01-01T00:00Z"))

    @pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", "utc+1"])
    def test_a_zone_that_is_none(self, zone: str) -> None:
        with pytest.raises(BadSchedule):
            read_schedule("0 9 * * *", zone, at("2026-01-01T00:00Z"))

    def test_a_leap_day_comes_one_day(self) -> None:
        now = at("2026-01-01T00:00Z")
        assert read_schedule("0 0 29 2 *", "UTC", now).next_after(now) == at("2028-02-29T00:00Z")
