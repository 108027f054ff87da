"""What counts as a store that is gone for now."""

import asyncio

import pytest
import uvloop

from app.infra.reach import is_out_of_reach


async def write_to_a_closed_connection() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await reader.read()
        writer.transport.abort()
        await asyncio.sleep(0)
        writer.transport.writelines([b"x"])


class TestOutOfReach:
    def test_a_connection_that_uvloop_has_closed_under_a_client_is(self) -> None:
        with pytest.raises(RuntimeError) as caught:
            uvloop.run(write_to_a_closed_connection())
        assert is_out_of_reach(caught.value)

    def test_any_other_runtime_error_is_not(self) -> None:
        assert not is_out_of_reach(RuntimeError("generator raised StopIteration"))
