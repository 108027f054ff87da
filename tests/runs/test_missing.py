"""What a log lacks of the events that stand in the rows."""

from typing import Any

from app.runs.recovery import Shown

BEGUN = Shown(5, frozenset(), (1, "msg_1"), "Half an ")
DISCARDED = {"type": "message.discarded", "seq": 6, "message_id": "msg_1"}


def delta(seq: int, text: str) -> dict[str, Any]:
    return {"type": "message.delta", "seq": seq, "message_id": "msg_1", "text": text}


class TestMissing:
    def test_of_a_message_that_was_begun_only_the_rest_is_missing(self) -> None:
        assert BEGUN.missing([delta(5, "?"), delta(9, "Half an answer.")]) == [delta(9, "answer.")]

    def test_nothing_of_it_where_all_was_shown(self) -> None:
        assert BEGUN.missing([delta(9, "Half an ")]) == []

    def test_all_of_it_where_it_was_discarded_and_written_anew(self) -> None:
        anew = [DISCARDED, delta(9, "Half an answer.")]
        assert BEGUN.missing(anew) == anew
        same = [DISCARDED, delta(9, "Half an ")]
        assert BEGUN.missing(same) == same
