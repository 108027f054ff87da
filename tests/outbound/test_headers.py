from typing import Any

import pytest

from app.infra.errors import Invalid
from app.outbound.headers import check_headers


class TestHeadersAtRegistration:
    def test_ordinary_ones_are_kept_as_they_are(self) -> None:
        headers = {"Authorization": "Bearer sk-1", "X-Tenant": "a b\tc", "Cookie": "a=1"}
        assert check_headers(headers) == headers
        assert check_headers({}) == {}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Key", "sécret"), ("X-Key", "secret\n"), ("X-Key", "secret\r\nHost: x"), ("X-Key", " secret"),
            ("X-Key", "secret "), ("X-Key", "secret\x00"), ("X-Key", "secret\x7f"), ("X-Key", ""), ("X-Key", 5),
            ("X-Key", None), ("X-Key", "secret" * 1000), ("X Key", "secret"), ("", "secret"), ("X:Key", "secret"),
            ("X-Ké", "secret"), ("X\n", "secret"), ("x" * 101, "secret"),
            ("Host", "secret"), ("content-length", "secret"), ("Content-Type", "secret"), ("Transfer-Encoding", "secret"),
            ("Connection", "secret"), ("Webhook-Id", "secret"), ("IDEMPOTENCY-KEY", "secret"),
            ("Rondo-Run", "secret"), ("Accept-Encoding", "secret"), ("Expect", "secret"),
            ("Upgrade", "secret"), ("TE", "secret"), ("Proxy-Authorization", "secret"), ("User-Agent", "secret"),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_sent_is_refused_by_name_without_its_value(self, name: str, value: Any) -> None:
        with pytest.raises(Invalid) as caught:
            check_headers({"X-Good": "1", name: value})
        assert caught.value.status == 422
        (error,) = caught.value.extra["errors"]
        assert error["loc"] == ["body", "headers", name[:100]]
        assert "secret" not in repr(caught.value.extra) + str(caught.value)

    def test_one_name_in_two_spellings_is_refused(self) -> None:
        with pytest.raises(Invalid, match="not valid") as caught:
            check_headers({"X-Key": "1", "x-key": "2"})
        assert caught.value.extra["errors"] == [{"loc": ["body", "headers", "x-key"], "msg": "the header is given twice"}]

    def test_they_are_limited_in_number_and_size(self) -> None:
        with pytest.raises(Invalid):
            check_headers({f"x-{n}": "1" for n in range(31)})
        with pytest.raises(Invalid):
            check_headers({f"x-{n}": "y" * 3_900 for n in range(5)})
