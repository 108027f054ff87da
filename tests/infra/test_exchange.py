"""Commands that go together over a connection of their own, to a real server and to one that misbehaves."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from app.infra import redis as redis_client
from app.infra.redis import Exchange
from app.infra.settings import Settings


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    assert settings.redis_url is not None
    client = redis_client.connect(settings.redis_url, 2.0)
    yield client
    await client.aclose()


@pytest.fixture
async def exchange(redis: Redis) -> AsyncIterator[Exchange]:
    made = Exchange(redis)
    yield made
    await made.close()


class TestExchange:
    async def test_answers_come_in_the_order_of_the_commands(self, exchange: Exchange) -> None:
        commands = [("SET", "exchange:1", b"\x00\r\nx"), ("GET", "exchange:1"), ("DEL", "exchange:1"), ("GET", "exchange:1")]
        assert await exchange.send(commands) == [b"OK", b"\x00\r\nx", 1, None]

    async def test_an_error_among_them_is_raised_and_the_next_answers_are_still_their_own(self, exchange: Exchange) -> None:
        await exchange.send([("SET", "exchange:2", "text")])
        with pytest.raises(ResponseError, match="not an integer"):
            await exchange.send([("INCR", "exchange:2"), ("GET", "exchange:2")])
        assert await exchange.send([("GET", "exchange:2"), ("DEL", "exchange:2")]) == [b"text", 1]

    async def test_a_script_that_is_not_known_is_told_as_such(self, exchange: Exchange) -> None:
        with pytest.raises(NoScriptError):
            await exchange.send([("EVALSHA", "0" * 40, 0)])

    async def test_a_connection_that_the_server_has_closed_is_opened_again(self, redis: Redis, exchange: Exchange) -> None:
        (own,) = await exchange.send([("CLIENT", "ID")])
        await redis.client_kill_filter(_id=own)
        (other,) = await exchange.send([("CLIENT", "ID")])
        assert other != own

    async def test_nobody_there_is_told_at_once(self) -> None:
        exchange = Exchange(redis_client.connect("redis://127.0.0.1:1/0", 2.0))
        with pytest.raises(ConnectionError):
            await exchange.send([("PING",)])

    async def test_who_does_not_answer_in_time_is_left_and_a_late_answer_taken_for_nobodys(self) -> None:
        received = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the client leaves
            received.set()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            exchange = Exchange(redis_client.connect(f"redis://127.0.0.1:{port}/0", 0.1))
            with pytest.raises(OSError):  # noqa: PT011, the timer has nothing to say
                await exchange.send([("PING",)])
            await asyncio.wait_for(received.wait(), 5)
