"""A short storm over the whole service. `make soak` blows longer, and over all that can be hit."""

import os

import pytest

from tests.faults.judge import judge
from tests.faults.report import report
from tests.faults.storm import Storm, Weather

SEED = int(os.environ.get("RONDO_TEST_STORM_SEED", "7"))
FAULTS = ("kill", "term", "pause", "cut")


class TestStorm:
    async def test_nothing_is_lost_doubled_or_stuck(self) -> None:
        evidence = await Storm(Weather(SEED, 24.0, FAULTS)).run()
        objections = judge(evidence)
        text = report(evidence, objections)
        print(text)
        if objections:
            pytest.fail("\n".join(["", *map(str, objections), text]))
        assert sum(story.recoveries for story in evidence.stories) > 0, f"nothing was recovered\n{text}"
