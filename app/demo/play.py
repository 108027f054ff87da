"""`rondo demo`: starts everything, plays a conversation over the API as any caller would, and goes on serving."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from app.demo.agency import TOOLS, Agency
from app.demo.conversation import Turn, system_prompt, to_paste, turns
from app.demo.service import Service, ServiceEnded, demo_settings, logging_into, prepare, tail
from app.demo.stage import Stage
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.settings import Settings
from app.providers.sse import FrameSplitter

_SCRIPTED_MODEL = "scripted/demo"
_REAL_MODEL = "openai/gpt-5-mini"
_WATCH_SECONDS = 1.0
_SILENCE_SECONDS = 60.0  # a stream pings more often
_TERMINAL = frozenset({"run.completed", "run.incomplete", "run.failed", "run.cancelled"})


class Unplayable(Exception):
    """The API refused what the demo asked of it."""


def main(settings: Settings, *, once: bool = False) -> int:
    """Serve until SIGINT or SIGTERM (0), or with `once` until the conversation is over (0 if all went well, else 1)."""
    signals = Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signals.handle)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        return _demo(settings, signals, once)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # Whoever read what we print is gone. Python would complain of it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ServiceEnded as error:
        print(f"rondo: {error}. The end of its log, {_log_file(settings)}:\n{tail(_log_file(settings))}", file=sys.stderr)
        return 1
    except (Unplayable, httpx.TransportError) as error:
        print(f"rondo: {error} (the service's log: {_log_file(settings)})", file=sys.stderr)
        return 1


def _log_file(settings: Settings) -> Path:
    return settings.data_dir / "demo.log"


class Signals:
    """SIGINT and SIGTERM end the demo in order, and do not disturb its ending."""

    def __init__(self) -> None:
        self.is_ending = False
        self._asked = False

    def handle(self, number: int, frame: Any) -> None:
        self._asked = True
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if asked to end. Called now and then, since Python drops what is raised in some places."""
        if self._asked and not self.is_ending:
            raise KeyboardInterrupt


def _demo(settings: Settings, signals: Signals, once: bool) -> int:
    with ExitStack() as stack:
        try:
            return _play_all(settings, signals, once, stack)
        finally:
            signals.is_ending = True


def _play_all(settings: Settings, signals: Signals, once: bool, stack: ExitStack) -> int:
    model = _model(settings)
    scripted = _is_scripted(model)
    agency = Agency()
    stage = Stage(agency)
    stage.line("Rondo's demo: a model, an estate agency with two tools, and a service between them.")
    service, key = _start(settings, stack, stage)
    stack.enter_context(agency)
    stage.fact("agency", f"{agency.url} hosts {' and '.join(TOOLS)}")
    stage.fact("model", model + (" (costs nothing; OPENAI_API_KEY takes a real one)" if scripted else ""))
    caller = stack.enter_context(_caller(service.url, key))
    _register_tools(caller, agency)
    session_id = _new_session(caller, model)
    runs = []
    for turn in turns():
        signals.check()
        runs.append(_play(caller, stage, session_id, turn, scripted))
    _sum_up(caller, stage, session_id, runs, settings)
    if once:
        return 0 if all(run["status"] == "completed" for run in runs) else 1
    _invite(stage, f"{service.url}/v1/sessions/{session_id}/runs", key, scripted)
    try:
        while True:
            signals.check()
            service.watch(_WATCH_SECONDS)
    finally:
        stage.line()
        stage.line("Stopping.")


def _model(settings: Settings) -> str:
    return _SCRIPTED_MODEL if settings.openai_api_key is None else settings.model or _REAL_MODEL


def _is_scripted(model: str) -> bool:
    return model.startswith("scripted/")


def _start(settings: Settings, stack: ExitStack, stage: Stage) -> tuple[Service, str]:
    """The servers, the database and the service, one after the other; and a key of the demo."""
    started = time.monotonic()
    if settings.database_url is None or settings.redis_url is None:
        stage.fact("servers", "PostgreSQL and Valkey are starting (the first time takes a little longer)")
    settings = demo_settings(settings, stack.enter_context(EmbeddedServers(settings)))
    stack.enter_context(logging_into(_log_file(settings), settings.log_level))
    key, made = asyncio.run(prepare(settings))
    service = stack.enter_context(Service(settings))
    taken = f" (port {settings.port} is not free)" if settings.port not in (0, service.port) else ""
    stage.fact("service", f"{service.url}{taken}, ready after {time.monotonic() - started:.1f} s")
    for kind, one in made.items():
        of = " of the workspace `default` (the demo has its own)" if kind == "service" else ""
        stage.fact("new key", f"{kind}{of}, shown once: {one}")
    return service, key


def _caller(url: str, key: str) -> httpx.Client:
    timeout = httpx.Timeout(30, read=_SILENCE_SECONDS)
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout, trust_env=False)


def _ask(caller: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    response = caller.request(method, path, json=body)
    _check(response)
    return response.json() if response.content else None


def _check(response: httpx.Response) -> None:
    if response.is_error:
        response.read()
        raise Unplayable(f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}")


def _register_tools(caller: httpx.Client, agency: Agency) -> None:
    for name, tool in TOOLS.items():
        # Only a new registration shows its secret, and that of an earlier demo is known to nobody.
        caller.delete(f"/v1/tools/{name}")
        made = _ask(caller, "PUT", f"/v1/tools/{name}", {**tool, "url": f"{agency.url}/{name}"})
        agency.secrets[name] = made["secret"]


def _new_session(caller: httpx.Client, model: str) -> str:
    session = {
        "tenant": {"type": "agency", "id": "demo"},
        "title": "The demo",
        "model": model,
        "system_prompt": system_prompt(),
        "tools": list(TOOLS),
    }
    session_id: str = _ask(caller, "POST", "/v1/sessions", session)["id"]
    return session_id


def _play(caller: httpx.Client, stage: Stage, session_id: str, turn: Turn, scripted: bool) -> dict[str, Any]:
    """One question and all that follows from it. Returns the run as it ended."""
    stage.heading(turn.title if scripted else turn.topic)
    stage.question(turn.question)
    run: dict[str, Any] | None = None
    for event in _events(caller, f"/v1/sessions/{session_id}/runs", _body(turn, scripted)):
        stage.show(event)
        if event["type"] in _TERMINAL:
            run = event["run"]
    if run is None:
        raise Unplayable("the stream ended before the run did")
    return run


def _body(turn: Turn, scripted: bool) -> dict[str, Any]:
    return {"input": turn.question, "stream": True} | ({"script": turn.script} if scripted else {})


def _events(caller: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    splitter = FrameSplitter()
    with caller.stream("POST", path, json=body) as response:
        _check(response)
        for chunk in response.iter_raw():
            for frame in splitter.feed(chunk):
                yield json.loads(frame.data)


def _sum_up(caller: httpx.Client, stage: Stage, session_id: str, runs: list[dict[str, Any]], settings: Settings) -> None:
    messages = _ask(caller, "GET", f"/v1/sessions/{session_id}/messages?limit=200")["data"]
    tokens = [sum(run["usage"][name] for run in runs) for name in ("input_tokens", "output_tokens")]
    calls = sum(run["tool_calls"] for run in runs)
    stage.heading("What there is now")
    stage.fact("runs", f"{len(runs)}, with {sum(run['iterations'] for run in runs)} model calls and {calls} tool calls")
    stage.fact("events", f"{stage.events} came over the stream; GET /v1/runs/{runs[-1]['id']}/events gives the last again")
    stage.fact("messages", f"{len(messages)} are stored in {session_id}")
    source = " (as the script states them)" if _is_scripted(runs[-1]["model"]) else ""
    stage.fact("tokens", f"{tokens[0]:,} in, {tokens[1]:,} out{source}")
    stage.fact("data", _place(settings))


def _place(settings: Settings) -> str:
    folder = str(settings.data_dir.resolve())
    named = [name for name, url in (("DATABASE_URL", settings.database_url), ("REDIS_URL", settings.redis_url)) if url]
    if len(named) == 2:
        return f"at DATABASE_URL and REDIS_URL; the service's log is in {folder}"
    return f"in {folder}" + (f", and at {named[0]}" if named else "")


def _invite(stage: Stage, url: str, key: str, scripted: bool) -> None:
    body = json.dumps(_body(to_paste(), scripted))
    stage.heading("Now you: paste this into another terminal")
    stage.line()
    stage.line(
        f"curl -N {url} \\\n  -H 'Authorization: Bearer {key}' \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
    )
    stage.line()
    stage.line("Serving until Ctrl-C.")
