import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.outbound.sender import FailureKind
from tests.outbound.sending import FakeNames, failure_of, sender
from tests.tools.webhook_server import WebhookServer

pytestmark = pytest.mark.asyncio


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a trusting client's context for a name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "server.pem"
    chain.write_bytes(
        cert.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    return server, ssl.create_default_context(cadata=cert.public_bytes(serialization.Encoding.PEM).decode())


class TestTls:
    async def test_sni_host_and_certificate_are_those_of_the_name_while_the_address_is_pinned(self, tmp_path: Path) -> None:
        server_side, client_side = certificate(tmp_path, "tools.test")
        asked: list[str] = []
        server_side.sni_callback = lambda _socket, name, _context: asked.append(name)
        async with (
            sender(FakeNames(["127.0.0.1"]), ssl_context=client_side) as sending,
            WebhookServer(tls=server_side) as server,
        ):
            answer = await sending.post(server.url_at("tools.test"), b"{}", {}, 5)
            assert answer.status == 200
            assert asked == ["tools.test"]
            assert server.requests[0].headers["host"] == f"tools.test:{server.port}"

    async def test_a_certificate_of_another_name_is_a_tls_failure(self, tmp_path: Path) -> None:
        server_side, client_side = certificate(tmp_path, "other.test")
        async with (
            sender(FakeNames(["127.0.0.1"]), ssl_context=client_side) as sending,
            WebhookServer(tls=server_side) as server,
        ):
            failure = await failure_of(sending, server.url_at("tools.test"))
            assert (failure.kind, failure.retryable) == (FailureKind.TLS, False)
            assert server.requests == []

    async def test_a_certificate_that_nobody_vouches_for_is_a_tls_failure(self, tmp_path: Path) -> None:
        server_side, _ = certificate(tmp_path, "tools.test")
        async with sender(FakeNames(["127.0.0.1"])) as sending, WebhookServer(tls=server_side) as server:
            assert (await failure_of(sending, server.url_at("tools.test"))).kind is FailureKind.TLS

    async def test_a_server_that_speaks_no_tls_is_a_tls_failure(self) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with sender() as sending, server:
            failure = await failure_of(sending, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert failure.kind is FailureKind.TLS
