"""A port for what must be told it before it listens."""

import contextlib
import random
import socket


def free_port() -> int:
    """One that nobody else is given meanwhile: whoever asks for any port gets one above 32768."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(20_000, 30_000))) as free:
            found: int = free.getsockname()[1]
            return found
