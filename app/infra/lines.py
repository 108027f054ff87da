"""JSON that stays on one line for every reader."""

_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def one_line(body: bytes) -> bytes:
    """Readers that cut lines as Python's `splitlines` does cut at these characters too; JSON may write them escaped."""
    if b"\xe2\x80" in body or b"\xc2\x85" in body:
        for character, escaped in _LINE_ENDS:
            body = body.replace(character, escaped)
    return body
