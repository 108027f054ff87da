import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.outbound.address_guard import (
    Address,
    AddressGuard,
    RefusedAddress,
    UnresolvedName,
    is_public,
    system_lookup,
)
from app.outbound.connector import GuardedResolver

PRIVATE = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16")]
private_v4 = st.one_of([st.ip_addresses(v=4, network=str(network)) for network in PRIVATE])


def names(**answers: Sequence[str]) -> "FakeNames":
    return FakeNames({name.replace("_", "."): list(found) for name, found in answers.items()})


class FakeNames:
    """A name server of a test. A name with several lists gives them one after the other."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [ipaddress.ip_address(text) for text in self.answers[host]]


class TestPublicAddresses:
    @pytest.mark.parametrize(
        "text",
        [
            "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "169.254.169.254",
            "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
            "198.19.255.255", "198.51.100.7", "203.0.113.7", "224.0.0.1", "239.255.255.250", "240.0.0.1",
            "255.255.255.255", "168.63.129.16",
            "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1",
            "2001:db8::1", "2001:2::1", "2001:10::1", "3fff::1", "5f00::1", "4000::1",
        ],
    )  # fmt: skip
    def test_special_purpose_addresses_are_not_public(self, text: str) -> None:
        assert not is_public(ipaddress.ip_address(text))

    @pytest.mark.parametrize(
        "text",
        [
            "8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "198.17.0.1",
            "93.184.216.34",
            "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
        ],
    )  # fmt: skip
    def test_ordinary_addresses_are_public(self, text: str) -> None:
        assert is_public(ipaddress.ip_address(text))

    @given(private_v4, st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
    def test_no_embedded_form_of_a_private_address_is_public(self, v4: ipaddress.IPv4Address, noise: int, low: int) -> None:
        inner = int(v4)
        forms = {
            "mapped": 0xFFFF << 32 | inner,
            "compatible": inner,
            "translated": 0xFFFF << 48 | inner,
            "6to4": 0x2002 << 112 | inner << 80 | low,
            "teredo": 0x20010000 << 96 | noise << 64 | inner ^ 0xFFFFFFFF,
            "teredo server": 0x20010000 << 96 | inner << 64 | noise,
            "nat64": 0x64FF9B << 96 | inner,
            "local nat64": 0x64FF9B0001 << 80 | inner,
            "isatap": 0x2606 << 112 | 0x5EFE << 32 | inner,
            "isatap, universal": 0x2606 << 112 | 0x02005EFE << 32 | inner,
        }
        assert {name for name, number in forms.items() if is_public(ipaddress.IPv6Address(number))} == set()


class TestAllowing:
    def test_nothing_private_is_permitted_by_default(self) -> None:
        assert not AddressGuard().permits(ipaddress.ip_address("127.0.0.1"))

    def test_true_permits_everything(self) -> None:
        guard = AddressGuard(True)
        assert all(guard.permits(ipaddress.ip_address(text)) for text in ("127.0.0.1", "169.254.169.254", "::1", "fd00::1"))

    def test_a_list_permits_its_networks_and_the_mapped_forms_of_them_only(self) -> None:
        guard = AddressGuard((ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")))
        permitted = ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::1", "8.8.8.8")
        refused = ("10.2.0.1", "127.0.0.1", "::ffff:10.2.0.1", "2002:0a01:0203::1", "fe80::1")
        assert all(guard.permits(ipaddress.ip_address(text)) for text in permitted)
        assert not any(guard.permits(ipaddress.ip_address(text)) for text in refused)


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "ftp://example.com/", "file:///etc/passwd", "gopher://example.com", "//example.com/x", "example.com/x", "",
            "http://", "http:///x", "https://user:pass@example.com/", "https://user@example.com/", "http://8.8.8.8@10.0.0.1/",
            "http://example.com:0/", "http://example.com:65536/", "http://example.com:８０/", "http://example.com:+80/",
            "http://example.com/#x", "http://example.com#@10.0.0.1/", "http://example.com\\@10.0.0.1/",
            "http://exa mple.com/", "http://example.com/a b", "http://example.com/\r\nX: y", "http://example.com/\x00",
            " http://example.com/", "http://example.com/\u2028", "http://[::1", "http://[::1]x/", "http://[fe80::1%25eth0]/",
            "http://[::g]/", "http://%31%32%37.0.0.1/", "http://exam%70le.com/", "http://.example.com/", "http://a..b/",
            "http://" + "a" * 64 + ".com/", "http://-a.com/", "http://1.2.3.256/", "http://1.2.3.4.5/", "http://foo.1/",
            "http://08.0.0.1/", "http://example.com/" + "a" * 5000,
        ],
    )  # fmt: skip
    def test_a_url_that_is_odd_is_refused(self, url: str) -> None:
        with pytest.raises(RefusedAddress):
            AddressGuard(True).check_url(url)

    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1", "127.1", "127.0.1", "0x7f000001", "0X7F.1", "2130706433", "017700000001", "0177.0.0.1", "0",
            "127.0.0.1.", "１２７.０.０.１", "①②⑦.0.0.1", "127。0。0。1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
            "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]", "169.254.169.254", "0xA9FEA9FE", "[fd00:ec2::254]", "10.0.0.1:8080",
        ],
    )  # fmt: skip
    def test_an_address_is_judged_as_the_resolver_of_the_system_would_read_it(self, host: str) -> None:
        with pytest.raises(RefusedAddress, match="not public"):
            AddressGuard().check_url(f"http://{host}/hook")

    @given(private_v4)
    def test_no_numeric_spelling_of_a_private_address_passes(self, v4: ipaddress.IPv4Address) -> None:
        number, octets = int(v4), v4.packed
        wide = str.maketrans("0123456789", "０１２３４５６７８９")
        for host in (
            str(number), hex(number), f"0{number:o}", f"{octets[0]}.{number & 0xFFFFFF}",
            f"{octets[0]:#x}.{octets[1]:#x}.{number & 0xFFFF}", str(v4).translate(wide), f"{v4}.",
        ):  # fmt: skip
            with pytest.raises(RefusedAddress):
                AddressGuard().check_url(f"https://{host}/")

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("https://Example.COM/Hook?a=%2F&b=1", "https://example.com/Hook?a=%2F&b=1"),
            ("https://example.com/á?q=«x»&r=%e1", "https://example.com/%C3%A1?q=%C2%ABx%C2%BB&r=%e1"),
            ("https://example.com:443", "https://example.com/"),
            ("https://example.com:/x", "https://example.com/x"),
            ("http://app_web:8000/x", "http://app_web:8000/x"),
            ("http://example.com./x", "http://example.com./x"),
            ("http://münchen.example/x", "http://xn--mnchen-3ya.example/x"),
            ("http://134744072/", "http://8.8.8.8/"),
            ("http://[2606:4700::0:1]:81/", "http://[2606:4700::1]:81/"),
        ],
    )
    def test_an_ordinary_one_passes_in_one_plain_spelling(self, url: str, expected: str) -> None:
        assert AddressGuard().check_url(url).url == expected


class TestRegistration:
    pytestmark = pytest.mark.asyncio

    async def test_a_name_with_public_addresses_passes(self) -> None:
        guard = AddressGuard(lookup=names(example_com=["93.184.216.34", "2606:4700::1"]))
        assert (await guard.check_resolved("https://example.com/x")).host == "example.com"

    @pytest.mark.parametrize(
        "found", [["10.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["93.184.216.34", "::ffff:10.0.0.1"], ["::1"]]
    )
    async def test_a_name_with_any_private_address_is_refused_without_telling_it(self, found: list[str]) -> None:
        guard = AddressGuard(lookup=names(hook_attacker_test=found))
        with pytest.raises(RefusedAddress, match="not public") as caught:
            await guard.check_resolved("https://hook.attacker.test/")
        assert "10.0.0.1" not in str(caught.value)

    async def test_a_list_of_networks_covers_the_addresses_of_a_name(self) -> None:
        guard = AddressGuard((ipaddress.ip_network("10.0.0.0/8"),), lookup=names(app=["10.0.0.1"]))
        assert (await guard.check_resolved("http://app/")).url == "http://app/"

    async def test_a_name_without_an_address_passes_unless_it_must_have_one(self) -> None:
        guard = AddressGuard(lookup=names(empty_test=[]))
        for host in ("nowhere.test", "empty.test"):
            assert (await guard.check_resolved(f"https://{host}/")).host == host
            with pytest.raises(UnresolvedName, match="does not resolve"):
                await guard.check_resolved(f"https://{host}/", must_resolve=True)

    async def test_a_name_server_that_does_not_answer_holds_nothing_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def never(host: str, port: int) -> list[Address]:
            await asyncio.Event().wait()
            return []

        monkeypatch.setattr("app.outbound.address_guard.LOOKUP_SECONDS", 0.01)
        with pytest.raises(UnresolvedName):
            await AddressGuard(lookup=never).check_resolved("https://slow.test/", must_resolve=True)

    async def test_the_names_of_the_machine_itself_are_refused(self) -> None:
        with pytest.raises(RefusedAddress, match="not public"):
            await AddressGuard().check_resolved("http://localhost:8080/")
        assert ipaddress.ip_address("127.0.0.1") in await system_lookup("localhost", 80)


class TestResolverOfConnections:
    pytestmark = pytest.mark.asyncio

    async def test_it_resolves_once_and_hands_over_exactly_what_it_checked(self) -> None:
        lookup = names(example_com=["93.184.216.34", "2606:4700::1"])
        results = await GuardedResolver(AddressGuard(lookup=lookup)).resolve("example.com", 443)
        assert [(item["host"], item["hostname"], item["port"]) for item in results] == [
            ("93.184.216.34", "example.com", 443),
            ("2606:4700::1", "example.com", 443),
        ]
        assert lookup.asked == ["example.com"]

    async def test_one_private_answer_among_several_refuses_them_all(self) -> None:
        resolver = GuardedResolver(AddressGuard(lookup=names(mixed_test=["93.184.216.34", "192.168.0.1"])))
        with pytest.raises(RefusedAddress):
            await resolver.resolve("mixed.test", 443)

    async def test_a_name_that_cannot_be_encoded_is_a_name_without_an_address(self) -> None:
        async def lookup(host: str, port: int) -> list[Address]:
            raise UnicodeError("label too long")

        with pytest.raises(OSError, match="cannot be looked up"):
            await GuardedResolver(AddressGuard(lookup=lookup)).resolve("x", 443)

    async def test_an_unwanted_family_is_left_out(self) -> None:
        resolver = GuardedResolver(AddressGuard(lookup=names(example_com=["93.184.216.34", "2606:4700::1"])))
        found = await resolver.resolve("example.com", 443, socket.AF_INET6)
        assert [item["host"] for item in found] == ["2606:4700::1"]
        await resolver.close()
