"""Bytes of a server-sent event stream -> frames, by the WHATWG rules, however the bytes were cut on the way.

Lines end with CR, LF or CRLF and with nothing else: other Unicode line ends are text. Decoding is left to whoever reads
the data, which is complete by then, so no character is ever cut in two.
"""

from typing import NamedTuple

MAX_FRAME_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class Frame(NamedTuple):
    """One event: its type (empty when the stream gave none) and its data lines, joined with LF."""

    event: str
    data: bytes


class FrameTooLarge(ValueError):
    """A frame is longer than the splitter may hold."""


class FrameSplitter:
    """Feed it what the socket gave, in any pieces; it gives the frames that are complete.

    `comments` counts the comment lines seen, which prove that the other side is alive; they are no frames. A frame
    without data is none either. Memory is bounded by `max_frame_bytes`, beyond which `feed` raises `FrameTooLarge`.
    """

    __slots__ = ("_after_cr", "_at_start", "_max_frame_bytes", "_rest", "comments")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.comments = 0
        self._max_frame_bytes = max_frame_bytes
        self._rest = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. All of it is consumed."""
        if self._at_start or self._after_cr or b"\r" in chunk:
            chunk = self._with_plain_line_ends(chunk)
        if self._rest:
            searched = max(len(self._rest) - 1, 0)
            self._rest += chunk
            if self._rest.find(b"\n\n", searched) < 0:
                self._hold(self._rest)
                return []
            chunk = bytes(self._rest)
        blocks = chunk.split(b"\n\n")
        self._hold(blocks.pop())
        frames = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                frames.append(Frame("", block[6:]))
            elif (frame := self._parse(block)) is not None:
                frames.append(frame)
        return frames

    def end(self) -> Frame | None:
        """The frame that the end of the stream left without its empty line, if there is one.

        The standard drops it; servers that forget the last empty line are common, so the reader decides.
        """
        block, self._rest = bytes(self._rest), bytearray()
        return self._parse(block)

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        """Without the byte order mark, and with LF for every line end. A CR counts at once; an LF behind it is dropped."""
        if self._at_start:
            chunk = bytes(self._rest) + chunk
            self._rest.clear()
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._rest += chunk
                return b""
            self._at_start = False
            chunk = chunk.removeprefix(_BOM)
        if not chunk:
            return chunk
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, tail: bytes | bytearray) -> None:
        """Keep what belongs to the next frame; whole comment lines before it are counted and forgotten."""
        if not tail:
            self._rest = bytearray()
            return
        while tail.startswith((b":", b"\n")) and (end := tail.find(b"\n")) >= 0:
            self.comments += tail.startswith(b":")
            tail = tail[end + 1 :]
        if len(tail) > self._max_frame_bytes:
            raise FrameTooLarge(f"a frame is longer than {self._max_frame_bytes} bytes")
        self._rest = tail if isinstance(tail, bytearray) else bytearray(tail)

    def _parse(self, block: bytes) -> Frame | None:
        event = b""
        data: list[bytes] = []
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name == b"event":
                event = value.removeprefix(b" ")
            elif line.startswith(b":"):
                self.comments += 1
        return Frame(event.decode("utf-8", "replace"), b"\n".join(data)) if data else None
