"""`rondo demo` as a stranger runs it: an empty home, no settings, no server but those that it starts."""

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from threading import Timer

import pytest

from app.demo import agency as agencies
from app.demo.agency import Agency
from app.outbound.signing import new_secret, sign

RONDO = Path(sys.executable).with_name("rondo")
DEADLINE_SECONDS = 120.0
SETTINGS = re.compile(r"RONDO_.*|.*_API_KEY|.*_BASE_URL|DATABASE_URL|REDIS_URL|HOST|NO_COLOR")


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command under way, on a free port, its error output in `folder`. It is killed if it outlives the deadline."""
    environment = {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}
    environment |= {"HOME": str(folder), "RONDO_DATA_DIR": str(folder / "data"), "PORT": "0", "PYTHONUTF8": "1"}
    with (folder / "errors").open("w") as errors:
        child = subprocess.Popen(
            [RONDO, "demo", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            env=environment, cwd=folder, encoding="utf-8",
        )  # fmt: skip
    watch = Timer(DEADLINE_SECONDS, child.kill)
    watch.start()
    try:
        yield child
    finally:
        watch.cancel()
        child.terminate()
        try:
            child.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()


def told_until(child: subprocess.Popen[str], last: str) -> str:
    """What it prints, up to a line that begins with `last`."""
    assert child.stdout is not None
    told = ""
    for line in child.stdout:
        told += line
        if line.startswith(last):
            return told
    raise AssertionError(f"the demo ended early ({child.wait()}):\n{told}")


def in_order(text: str, *parts: str) -> None:
    """Each part stands in the text, behind the one before."""
    start = 0
    for part in parts:
        found = text.find(part, start)
        assert found >= 0, f"{part!r} is missing after {text[:start][-80:]!r} in:\n{text}"
        start = found + len(part)


class TestTheDemo:
    def test_tells_the_whole_story_and_ends_when_it_shall_play_once(self, tmp_path: Path) -> None:
        with demo(tmp_path, "--once") as child:
            story, _ = child.communicate()
        assert child.returncode == 0, (tmp_path / "errors").read_text()
        in_order(
            story,
            'calls     list_properties {"city": "Valencia", "price_max": "300k", "bedrooms": 2}',
            'price_max: "300k" is not an integer  (not sent)',
            '"price_max": 300000',
            "verified by the agency, answered 200",
            '"V-102"',
            "model     Yes, two fit. V-102",
        )
        in_order(
            story,
            '"city": "Vigo"', 'nothing   {"items": []}', '"city": "Pontevedra"', 'nothing   {"items": []}',
            "hint to the model: 2 results in a row found nothing",
            "model     No. I searched Vigo and Pontevedra",
        )  # fmt: skip
        in_order(
            story,
            "calls     schedule_viewing", "verified by the agency, answered 422", "refused", "is in the past",
            "calls     schedule_viewing", "answered 200", '"status": "booked"', "model     It is booked: V-102",
        )  # fmt: skip
        in_order(story, "runs      3,", "messages  18 are stored", "tokens", f"in {(tmp_path / 'data').resolve()}")
        assert "\x1b" not in story
        assert (tmp_path / "errors").read_text() == ""

    def test_serves_on_and_its_curl_line_streams_a_run_until_it_is_asked_to_end(self, tmp_path: Path) -> None:
        with demo(tmp_path) as child:
            told = told_until(child, "Serving until")
            pasted = told[told.index("\ncurl ") : told.index("\nServing")].replace("curl ", "curl -sS --max-time 20 ", 1)
            streamed = subprocess.run(["sh", "-c", pasted], capture_output=True, encoding="utf-8", check=True).stdout
            child.send_signal(signal.SIGTERM)
            rest, _ = child.communicate()
        in_order(streamed, "event: run.started", '"outcome":"ok"', "event: message.delta", "event: run.completed")
        assert child.returncode == 0, (tmp_path / "errors").read_text()
        assert "Stopping." in rest
        assert (tmp_path / "errors").read_text() == ""


class TestTheAgency:
    BODY = b'{"data": {"arguments": {"city": "Val\xc3\xa8ncia", "price_max": 200000}}}'

    @pytest.fixture
    def agency(self) -> Iterator[Agency]:
        with Agency() as agency:
            agency.secrets = {name: new_secret() for name in agencies.TOOLS}
            yield agency

    def headers(self, secret: str, body: bytes, *, age_seconds: int = 0, message_id: str = "call_1") -> Message:
        timestamp = int(time.time()) - age_seconds
        headers = Message()
        headers["webhook-id"] = headers["idempotency-key"] = message_id
        headers["webhook-timestamp"] = str(timestamp)
        headers["webhook-signature"] = (
            f"v1,{base64.b64encode(b'x' * 32).decode()} {sign([secret], message_id, timestamp, body)}"
        )
        return headers

    def test_answers_what_is_signed_with_the_secret_of_that_tool(self, agency: Agency) -> None:
        headers = self.headers(agency.secrets["list_properties"], self.BODY)
        status, found = agency.answer("/list_properties", headers, self.BODY)
        assert (status, [one["id"] for one in found["items"]]) == (200, ["V-113"])
        assert agency.answer("/schedule_viewing", headers, self.BODY)[0] == 401

    def test_refuses_another_body_an_old_call_and_one_without_signature(self, agency: Agency) -> None:
        secret = agency.secrets["list_properties"]
        assert agency.answer("/list_properties", self.headers(secret, self.BODY), self.BODY + b" ")[0] == 401
        for age in (agencies.TOLERANCE_SECONDS + 5, -agencies.TOLERANCE_SECONDS - 5):
            assert agency.answer("/list_properties", self.headers(secret, self.BODY, age_seconds=age), self.BODY)[0] == 401
        assert agency.answer("/list_properties", Message(), self.BODY)[0] == 401
        assert agency.receipts == {}

    def test_does_nothing_twice_for_one_key(self, agency: Agency, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[str] = []
        monkeypatch.setattr(agencies, "list_properties", lambda city, **_: (done.append(city), (200, {"items": []}))[1])
        secret = agency.secrets["list_properties"]
        for message_id in ("call_1", "call_1", "call_2"):
            agency.answer("/list_properties", self.headers(secret, self.BODY, message_id=message_id), self.BODY)
        assert done == ["València", "València"]

    def test_tells_every_mistake_of_a_viewing_at_once(self) -> None:
        status, refusal = agencies.schedule_viewing("X-1", "2020-02-30T10:00")
        assert (status, set(refusal["errors"])) == (422, {"property_id", "when"})
        yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
        assert "is in the past" in agencies.schedule_viewing("V-102", yesterday)[1]["errors"]["when"][0]
