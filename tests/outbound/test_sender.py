import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.outbound.address_guard import Address, AddressGuard
from app.outbound.sender import FailureKind, Sender, SendFailure
from tests.outbound.sending import FakeNames, failure_of, sender, usual_tls
from tests.tools.webhook_server import Reply, WebhookServer

pytestmark = pytest.mark.asyncio


class TestPosting:
    async def test_the_bytes_and_headers_arrive_as_they_were_given(self) -> None:
        body = '{"a":"«María» \\n"}'.encode()
        async with sender() as sending, WebhookServer(Reply(201, b"done", {"X-Two": "2"})) as server:
            answer = await sending.post(f"{server.url}?q=%2F%20&sig=a%2Bb%3D", body, {"X-One": "1"}, 5)
        (request,) = server.requests
        assert (request.method, request.path, request.body) == ("POST", "/hook?q=%2F%20&sig=a%2Bb%3D", body)
        assert request.headers["x-one"] == "1"
        assert request.headers["content-length"] == str(len(body))
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert request.headers["accept-encoding"] == "identity"
        assert (answer.status, answer.body, answer.headers["x-two"]) == (201, b"done", "2")
        assert 0 < answer.seconds < 5

    async def test_a_long_body_arrives_whole_with_its_length(self) -> None:
        body = bytes(range(256)) * 12_000
        async with sender() as sending, WebhookServer() as server:
            await sending.post(server.url, body, {}, 10)
        assert server.requests[0].body == body
        assert server.requests[0].headers["content-length"] == str(len(body))
        assert "transfer-encoding" not in server.requests[0].headers

    async def test_connections_are_used_again_unless_a_fresh_one_is_wanted(self) -> None:
        async with sender() as sending, WebhookServer() as server:
            for _ in range(3):
                await sending.post(server.url, b"{}", {}, 5)
            assert server.connections == 1
            for _ in range(2):
                await sending.post(server.url, b"{}", {}, 5, fresh=True)
            assert server.connections == 3

    async def test_a_slow_address_does_not_keep_others_waiting(self) -> None:
        async with sender() as sending, WebhookServer(Reply(ending="hang")) as slow, WebhookServer() as quick:
            waiting = [asyncio.create_task(sending.post(slow.url, b"{}", {}, 30)) for _ in range(120)]
            await slow.received(120)
            assert (await sending.post(quick.url, b"{}", {}, 5)).status == 200
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await slow.lost(120)

    async def test_cookies_are_not_kept(self) -> None:
        async with sender() as sending, WebhookServer(Reply(headers={"Set-Cookie": "a=1; Path=/"})) as server:
            for _ in range(2):
                await sending.post(server.url, b"{}", {}, 5)
        assert "cookie" not in server.requests[1].headers

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_redirects_are_answers_and_the_second_host_is_not_contacted(self, status: int) -> None:
        async with sender() as sending, WebhookServer() as second:
            async with WebhookServer(Reply(status, headers={"Location": second.url})) as first:
                answer = await sending.post(first.url, b"{}", {"x-signature": "s"}, 5)
            assert answer.status == status
            assert (second.connections, len(first.requests)) == (0, 1)

    async def test_proxies_and_credentials_of_the_environment_are_ignored(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hidden\n")
        monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
        async with WebhookServer() as proxy, WebhookServer() as server:
            for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            async with sender() as sending:
                await sending.post(server.url, b"{}", {}, 5)
            assert (proxy.connections, len(server.requests)) == (0, 1)
            assert "authorization" not in server.requests[0].headers


class TestGuarding:
    async def test_a_literal_address_that_is_refused_is_never_connected_to(self) -> None:
        async with Sender(AddressGuard(), ssl_context=usual_tls()) as sending, WebhookServer() as server:
            for host in ("127.0.0.1", "2130706433", "127.1", "[::ffff:127.0.0.1]", "localhost"):
                failure = await failure_of(sending, server.url_at(host))
                assert (failure.kind, failure.retryable) == (FailureKind.REFUSED_ADDRESS, False)
            assert server.connections == 0

    async def test_an_odd_spelling_of_a_permitted_address_is_called_in_its_plain_one(self) -> None:
        async with sender() as sending, WebhookServer() as server:
            await sending.post(server.url_at("2130706433"), b"{}", {}, 5)
        assert server.requests[0].headers["host"] == f"127.0.0.1:{server.port}"

    async def test_a_name_that_was_public_at_registration_and_is_private_at_the_call_is_refused(self) -> None:
        lookup = FakeNames(["93.184.216.34"], ["10.0.0.1"])
        guard = AddressGuard(lookup=lookup)
        await guard.check_resolved("http://rebinding.test/")
        async with Sender(guard, ssl_context=usual_tls()) as sending:
            assert (await failure_of(sending, "http://rebinding.test/")).kind is FailureKind.REFUSED_ADDRESS
        assert lookup.asked == 2

    async def test_several_addresses_of_which_one_is_private_are_refused(self) -> None:
        async with sender(FakeNames(["127.0.0.1", "10.0.0.1"])) as sending, WebhookServer() as server:
            assert (await failure_of(sending, server.url_at("mixed.test"))).kind is FailureKind.REFUSED_ADDRESS
            assert server.connections == 0

    async def test_a_connection_uses_the_one_resolution_that_was_checked_and_keeps_the_name(self) -> None:
        lookup = FakeNames(["127.0.0.1"], ["10.0.0.1"])
        async with sender(lookup) as sending, WebhookServer() as server:
            await sending.post(server.url_at("tools.test"), b"{}", {}, 5)
            await sending.post(server.url_at("tools.test"), b"{}", {}, 5)
        assert lookup.asked == 1
        assert server.requests[0].headers["host"] == f"tools.test:{server.port}"

    @pytest.mark.parametrize("found", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
    async def test_the_address_of_a_socket_is_looked_at_whatever_came_before(self, found: list[str]) -> None:
        class Careless(AddressGuard):
            async def addresses(self, host: str, port: int) -> Sequence[Address]:
                return [ipaddress.ip_address(text) for text in found]

        async with Sender(Careless(), ssl_context=usual_tls()) as sending, WebhookServer() as server:
            assert (await failure_of(sending, server.url_at("careless.test"))).kind is FailureKind.REFUSED_ADDRESS
            assert server.connections == 0

    async def test_a_url_that_is_none_is_refused(self) -> None:
        async with sender() as sending:
            for url in ("ftp://example.com/", "http://a@127.0.0.1/", "http://", "http://127.0.0.1:1\r\n/"):
                assert (await failure_of(sending, url)).kind is FailureKind.REFUSED_ADDRESS


class TestFailures:
    async def test_nobody_listening_is_a_connection_failure(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with sender() as sending:
            failure = await failure_of(sending, f"http://127.0.0.1:{port}/")
        assert (failure.kind, failure.retryable, failure.status) == (FailureKind.CONNECTION, True, None)
        assert "connection refused" in failure.cause
        assert str(port) not in failure.cause

    @pytest.mark.parametrize("ending", ["close", "reset"])
    @pytest.mark.parametrize("fresh", [True, False])
    async def test_a_connection_that_ends_without_an_answer_is_a_connection_failure(self, ending: str, fresh: bool) -> None:
        async with sender() as sending, WebhookServer(Reply(ending=ending)) as server:  # type: ignore[arg-type]
            failure = await failure_of(sending, server.url, fresh=fresh)
            assert failure.kind is FailureKind.CONNECTION
            assert len(server.requests) == 1

    async def test_an_answer_that_is_cut_off_is_a_connection_failure_with_its_status(self) -> None:
        async with sender() as sending, WebhookServer(Reply(body=b"x" * 1000, ending="cut")) as server:
            failure = await failure_of(sending, server.url)
        assert (failure.kind, failure.status) == (FailureKind.CONNECTION, 200)

    async def test_a_name_without_an_address_is_a_connection_failure(self) -> None:
        async with sender(FakeNames([])) as sending:
            failure = await failure_of(sending, "http://nowhere.test/")
        assert (failure.kind, failure.cause) == (FailureKind.CONNECTION, "the host name does not resolve")

    async def test_what_is_no_http_is_a_bad_answer(self) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            writer.write(b"SSH-2.0-very-secret\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        async with sender() as sending, server:
            failure = await failure_of(sending, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert (failure.kind, failure.retryable) == (FailureKind.BAD_ANSWER, False)

    @pytest.mark.parametrize(
        "reply",
        [
            Reply(ending="hang"),
            Reply(body=b"x" * 1000, drip_seconds=0.02),
            Reply(delay_seconds=30),
        ],
    )
    async def test_the_time_out_covers_the_whole_answer_however_it_drips(self, reply: Reply) -> None:
        async with sender() as sending, WebhookServer(reply) as server:
            started = asyncio.get_running_loop().time()
            failure = await failure_of(sending, server.url, 0.2)
            assert (failure.kind, failure.retryable) == (FailureKind.TIMEOUT, False)
            assert asyncio.get_running_loop().time() - started < 2

    async def test_the_time_out_covers_the_look_up_of_the_name(self) -> None:
        async def never(host: str, port: int) -> list[Address]:
            await asyncio.Event().wait()
            return []

        async with Sender(AddressGuard(lookup=never), ssl_context=usual_tls()) as sending:
            assert (await failure_of(sending, "http://slow.test/", 0.05)).kind is FailureKind.TIMEOUT

    async def test_a_call_that_is_given_up_closes_its_connection(self) -> None:
        async with sender() as sending, WebhookServer(Reply(ending="hang")) as server:
            task = asyncio.create_task(sending.post(server.url, b"{}", {}, 30))
            await server.received(1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.lost(1)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-a", "é"),
            ("x-a", "sk-secret\n"),
            ("x-a", "a\r\nb: c"),
            ("x-a", " led"),
            ("x a", "b"),
            ("", "b"),
            ("x-a", "\x00"),
        ],
    )
    async def test_a_header_that_cannot_be_sent_fails_without_showing_it(self, name: str, value: str) -> None:
        async with sender() as sending, WebhookServer() as server:
            with pytest.raises(SendFailure) as caught:
                await sending.post(server.url, b"{}", {name: value}, 5)
            assert caught.value.kind is FailureKind.BAD_HEADER
            assert "secret" not in str(caught.value)
            assert server.connections == 0
