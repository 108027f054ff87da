"""Bytes become the same frames however they are cut and however lines end."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.sse import Frame, FrameSplitter, FrameTooLarge

LINE_ENDS = [b"\n", b"\r", b"\r\n"]


def frames_of(pieces: list[bytes]) -> list[Frame]:
    splitter = FrameSplitter()
    return [frame for piece in pieces for frame in splitter.feed(piece)]


def reference(stream: bytes) -> list[Frame]:
    """The standard's algorithm, word for word, over the whole stream."""
    frames, data, event = [], [], ""
    lines = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        field, _, value = line.partition(b":")
        if not line:
            if data:
                frames.append(Frame(event, b"\n".join(data)))
            data, event = [], ""
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            event = value.removeprefix(b" ").decode("utf-8", "replace")
    return frames


line = st.one_of(
    st.sampled_from([b"", b": ping", b"data", b"data:", b"data:  x", b"event: error", b"id: 7", b"retry: 5", b"x"]),
    st.text(alphabet="a\u2028\u0085\u000b\u000c\u001cé😀{}:", max_size=6).map(lambda text: b"data: " + text.encode()),
)


class TestCutting:
    @given(st.lists(st.tuples(line, st.sampled_from(LINE_ENDS)), max_size=12), st.booleans(), st.data())
    def test_any_stream_in_any_pieces_gives_what_the_standard_says(self, lines, with_bom, data):
        stream = (b"\xef\xbb\xbf" if with_bom else b"") + b"".join(text + end for text, end in lines)
        cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
        bounds = [0, *cuts, len(stream)]
        pieces = [stream[start:end] for start, end in pairwise(bounds)]
        assert frames_of(pieces) == reference(stream)

    @pytest.mark.parametrize("end", LINE_ENDS)
    def test_a_cut_at_every_byte_changes_nothing(self, end):
        lines = [b": hello", b"event: a", 'data: {"t":"漢字😀"}'.encode(), b"", b"data: B", b"data: C", b"", b"data: D", b""]
        stream = b"\xef\xbb\xbf" + b"".join(text + end for text in lines)
        expected = [Frame("a", '{"t":"漢字😀"}'.encode()), Frame("", b"B\nC"), Frame("", b"D")]
        for cut in range(len(stream) + 1):
            assert frames_of([stream[:cut], stream[cut:]]) == expected
        assert frames_of([bytes([byte]) for byte in stream]) == expected

    def test_mixed_line_ends_end_one_frame_once(self):
        assert frames_of([b"data: A\r\n", b"\r", b"\ndata: B\r\n\ndata: C\r\r"]) == [
            Frame("", b"A"),
            Frame("", b"B"),
            Frame("", b"C"),
        ]

    def test_a_carriage_return_ends_a_frame_without_waiting_for_what_follows(self):
        splitter = FrameSplitter()
        assert splitter.feed(b"data: A\r\r") == [Frame("", b"A")]
        assert splitter.feed(b"\ndata: B\r\r") == [Frame("", b"B")]

    def test_other_line_ends_of_unicode_are_text(self):
        text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1eh".encode()
        assert frames_of([b"data: " + text + b"\n\n"]) == [Frame("", text)]


class TestComments:
    def test_comments_are_counted_and_are_no_frames(self):
        splitter = FrameSplitter()
        assert splitter.feed(b": OPENROUTER PROCESSING\n\n: x\n\ndata: 1\n: y\n\n") == [Frame("", b"1")]
        assert splitter.comments == 3

    def test_comments_without_empty_lines_take_no_memory(self):
        splitter = FrameSplitter(max_frame_bytes=64)
        for _ in range(100):
            assert splitter.feed(b": still here\n") == []
        assert splitter.comments == 100
        assert splitter.feed(b"data: 1\n\n") == [Frame("", b"1")]


class TestBounds:
    def test_a_frame_without_end_is_refused(self):
        splitter = FrameSplitter(max_frame_bytes=1000)
        assert splitter.feed(b"data: " + b"x" * 994) == []
        with pytest.raises(FrameTooLarge):
            splitter.feed(b"x")

    def test_a_long_frame_is_put_together_from_small_reads(self):
        splitter = FrameSplitter()
        assert splitter.feed(b"data: ") == []
        for _ in range(300):
            assert splitter.feed(b"y" * 10_000) == []
        assert splitter.feed(b"\n\n") == [Frame("", b"y" * 3_000_000)]


class TestTheEnd:
    def test_a_last_frame_without_its_empty_line_can_be_asked_for(self):
        splitter = FrameSplitter()
        assert splitter.feed(b"data: 1\n\ndata: [DONE]") == [Frame("", b"1")]
        assert splitter.end() == Frame("", b"[DONE]")
        assert splitter.end() is None
