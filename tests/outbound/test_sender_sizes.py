import gzip
import tracemalloc
import zlib

import pytest

from app.outbound.sender import FailureKind, inflate
from tests.outbound.sending import failure_of, sender
from tests.tools.webhook_server import Reply, WebhookServer

pytestmark = pytest.mark.asyncio

MIB = 1024 * 1024


class TestSizes:
    async def test_an_answer_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(self) -> None:
        async with sender() as sending, WebhookServer(Reply(body=b"x" * 2 * MIB)) as server:
            assert len((await sending.post(server.url, b"{}", {}, 5)).body) == 2 * MIB
        async with sender() as sending, WebhookServer(Reply(body=b"x" * (2 * MIB + 1))) as server:
            failure = await failure_of(sending, server.url)
        assert (failure.kind, failure.status, failure.retryable) == (FailureKind.TOO_LARGE, 200, False)

    async def test_an_endless_answer_is_ended_with_memory_flat(self) -> None:
        async with sender() as sending, WebhookServer(Reply(ending="endless")) as server:
            tracemalloc.start()
            failure = await failure_of(sending, server.url)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert failure.kind is FailureKind.TOO_LARGE
            assert peak < 8 * MIB
            await server.lost(1)

    async def test_a_declared_length_over_the_limit_is_not_waited_for(self) -> None:
        reply = Reply(body=b"x", headers={"content-length": str(10 * MIB)})
        async with sender() as sending, WebhookServer(reply) as server:
            assert (await failure_of(sending, server.url)).kind is FailureKind.TOO_LARGE

    @pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
    async def test_a_bomb_is_not_inflated_beyond_the_limit(self, encoding: str) -> None:
        packed = gzip.compress(b"\0" * 64 * MIB)
        async with sender() as sending, WebhookServer(Reply(body=packed, headers={"content-encoding": encoding})) as server:
            tracemalloc.start()
            failure = await failure_of(sending, server.url)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert failure.kind is FailureKind.TOO_LARGE
        assert peak < 12 * MIB

    @pytest.mark.parametrize(
        ("encoding", "packed"),
        [
            ("gzip", gzip.compress(b"hello", mtime=0)),
            ("gzip", gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0)),
            ("deflate", zlib.compress(b"hello")),
            ("deflate", zlib.compress(b"hello")[2:-4]),
            ("identity", b"hello"),
        ],
    )
    async def test_a_server_that_compresses_all_the_same_is_understood(self, encoding: str, packed: bytes) -> None:
        async with sender() as sending, WebhookServer(Reply(body=packed, headers={"content-encoding": encoding})) as server:
            assert (await sending.post(server.url, b"{}", {}, 5)).body == b"hello"

    @pytest.mark.parametrize(
        ("encoding", "packed"),
        [
            ("br", b"xyz"),
            ("zstd", b"xyz"),
            ("gzip, gzip", b"x"),
            ("gzip", b"no gzip"),
            ("gzip", gzip.compress(b"hello", mtime=0)[:-5]),
        ],
    )
    async def test_other_encodings_and_broken_ones_are_refused(self, encoding: str, packed: bytes) -> None:
        async with sender() as sending, WebhookServer(Reply(body=packed, headers={"content-encoding": encoding})) as server:
            failure = await failure_of(sending, server.url)
        assert (failure.kind, failure.status) == (FailureKind.BAD_ANSWER, 200)

    async def test_many_small_members_stay_under_the_limit_too(self) -> None:
        assert len(inflate(gzip.compress(b"x" * 100) * 50, 1000, gzip=True) or b"") == 1001
