import base64
import json
import time
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from app.outbound.signing import new_secret, sign

BODY = '{"type":"tool.call","data":{"name":"María «x» \\u00e9"}}'.encode()


def headers(signature: str, timestamp: int | None = None, message_id: str = "call_1") -> dict[str, str]:
    stamp = int(time.time()) if timestamp is None else timestamp
    return {"webhook-id": message_id, "webhook-timestamp": str(stamp), "webhook-signature": signature}


class TestSecrets:
    def test_a_secret_is_whsec_and_32_random_bytes(self) -> None:
        secret = new_secret()
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
        assert len({new_secret() for _ in range(100)}) == 100

    @pytest.mark.parametrize("text", ["", "whsec_", "whsec_!!", "nothing", "whsec_" + base64.b64encode(b"x" * 23).decode()])
    def test_what_is_no_secret_is_refused_without_showing_it(self, text: str) -> None:
        with pytest.raises(ValueError, match="a webhook secret is") as caught:
            sign([text], "call_1", 1, b"")
        assert "!!" not in str(caught.value)


class TestSignatures:
    def test_the_reference_library_accepts_them_over_the_exact_bytes(self) -> None:
        secret, now = new_secret(), int(time.time())
        assert Webhook(secret).verify(BODY, headers(sign([secret], "call_1", now, BODY), now)) == json.loads(BODY)

    def test_they_equal_those_of_the_reference_library(self) -> None:
        secret, now = new_secret(), 1_700_000_000
        expected = Webhook(secret).sign("call_1", datetime.fromtimestamp(now, UTC), BODY.decode())
        assert sign([secret], "call_1", now, BODY) == expected

    def test_one_changed_byte_id_or_second_is_not_accepted(self) -> None:
        secret, now = new_secret(), int(time.time())
        signature = sign([secret], "call_1", now, BODY)
        for body, given in (
            (BODY + b" ", headers(signature, now)),
            (BODY, headers(signature, now + 1)),
            (BODY, headers(signature, now, "call_2")),
        ):
            with pytest.raises(WebhookVerificationError):
                Webhook(secret).verify(body, given)

    def test_a_receiver_refuses_a_request_that_is_played_again_later_or_from_the_future(self) -> None:
        secret = new_secret()
        for offset in (-3600, 3600):
            stamp = int(time.time()) + offset
            with pytest.raises(WebhookVerificationError):
                Webhook(secret).verify(BODY, headers(sign([secret], "call_1", stamp, BODY), stamp))

    def test_while_a_secret_is_rotated_both_the_old_and_the_new_one_verify(self) -> None:
        old, new, now = new_secret(), new_secret(), int(time.time())
        signature = sign([new, old], "call_1", now, BODY)
        assert [part[:3] for part in signature.split(" ")] == ["v1,", "v1,"]
        for secret in (old, new):
            Webhook(secret).verify(BODY, headers(signature, now))
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret()).verify(BODY, headers(signature, now))
