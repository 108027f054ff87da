from datetime import UTC, datetime, timedelta

from app.runs.timing import Timing

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TestTiming:
    def test_an_iteration_takes_its_attempts_and_the_time_to_its_last_result(self) -> None:
        timing = Timing()
        timing.replied(1, (0.5, 0.25), NOW)
        timing.answered(1, NOW + timedelta(seconds=3))
        timing.answered(1, NOW + timedelta(seconds=2))
        timing.replied(2, (0.1,), NOW)
        assert (timing.seconds(1), timing.seconds(2)) == (3.75, 0.1)

    def test_a_clock_that_was_set_back_takes_nothing_away(self) -> None:
        timing = Timing()
        timing.replied(1, (0.5,), NOW)
        timing.answered(1, NOW - timedelta(seconds=9))
        assert timing.seconds(1) == 0.5
