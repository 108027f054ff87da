"""The page's parts that need no browser, run by Node. Without Node on this machine they are reported as not run."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.console.test_page import PAGE


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("not run: node is not installed here")
    return found


def run(node: str, program: str, given: Any) -> Any:
    """What the program prints, as JSON; `given` is there as a constant."""
    text = f"const given = {json.dumps(given)}\n{program}"
    command = [node, "--input-type=module", "--eval", text]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


class TestFrames:
    STREAM = (
        'id: 1\nevent: a\ndata: {"text":"ñ € 😀"}\n\n: ping\n\nretry: 500\n\n'
        'id: 2\nevent: b\ndata: {"x":1}\n\nid: 3\ndata: half'
    )
    PROGRAM = """
    import {events} from './sse.js'
    const bytes = new TextEncoder().encode(given.stream), all = []
    for (let size = 1; size <= 20; size++) {
      const chunks = []
      for (let at = 0; at < bytes.length; at += size) chunks.push(bytes.slice(at, at + size))
      const body = new ReadableStream({pull(to) { chunks.length ? to.enqueue(chunks.shift()) : to.close() }})
      const frames = []
      for await (const frame of events(body)) frames.push([frame.id, frame.data])
      all.push(frames)
    }
    console.log(JSON.stringify(all))
    """

    def test_any_cut_gives_the_same_whole_frames(self, node: str) -> None:
        frames = [["1", '{"text":"ñ € 😀"}'], ["2", '{"x":1}']]
        assert run(node, self.PROGRAM, {"stream": self.STREAM}) == [frames] * 20


class TestFolding:
    PROGRAM = """
    import {fold, nothing, totals} from './fold.js'
    const state = nothing()
    for (const event of given) fold(state, event)
    console.log(JSON.stringify({...state, totals: totals(state)}))
    """

    def fold(self, node: str, *events: dict[str, Any]) -> Any:
        return run(node, self.PROGRAM, list(events))

    def test_a_message_that_is_begun_anew_loses_what_was_shown_of_it(self, node: str) -> None:
        delta = {"type": "message.delta", "iteration": 1, "message_id": "m"}
        state = self.fold(
            node,
            {**delta, "text": "Half"},
            {"type": "reasoning.delta", "iteration": 1, "text": "Hm."},
            {"type": "message.discarded", "iteration": 1, "message_id": "m"},
            {**delta, "text": "Who"},
            {**delta, "text": "le"},
        )
        (iteration,) = state["iterations"]
        assert (iteration["text"], iteration["reasoning"], iteration["discarded"]) == ("Whole", "", 1)

    def test_a_call_is_what_all_its_events_say(self, node: str) -> None:
        call = {"iteration": 1, "call_id": "c", "tool": "search"}
        invoked = {"result": [], "outcome": "empty", "seconds": 0.5, "attempts": 2, "truncated": False}
        state = self.fold(
            node,
            {"type": "tool.invoking", **call, "arguments": {"q": 1}},
            {"type": "tool.invoked", **call, **invoked},
            {"type": "guard.hint", "iteration": 1, "call_id": "c", "streak": 2},
            {"type": "iteration.completed", "iteration": 1, "finish_reason": "tool_calls", "seconds": 1.0,
             "usage": {"input_tokens": 3, "output_tokens": 4}},
        )  # fmt: skip
        (shown,) = state["iterations"][0]["calls"]
        assert shown == {"id": "c", "tool": "search", "arguments": {"q": 1}, "streak": 2, **invoked}
        assert state["totals"] == {"iterations": 1, "calls": 1, "input": 3, "output": 4}

    def test_what_a_run_waits_for_is_gone_when_it_goes_on_or_ends(self, node: str) -> None:
        usage = {"input_tokens": 0, "output_tokens": 0}
        run_ = {"id": "r", "status": "queued", "iterations": 0, "tool_calls": 0, "usage": usage}
        begun = ({"type": "run.queued", "run": run_}, {"type": "run.waiting", "pending": [{"call_id": "c"}]})
        waits = self.fold(node, *begun)
        assert (waits["run"]["status"], waits["pending"]) == ("waiting", [{"call_id": "c"}])
        resumed = self.fold(node, *begun, {"type": "run.resumed", "reason": "answered"})
        assert (resumed["run"]["status"], resumed["pending"]) == ("running", [])
        ended = self.fold(node, *begun, {"type": "run.cancelled", "run": {**run_, "status": "cancelled"}})
        assert (ended["run"]["status"], ended["pending"]) == ("cancelled", [])
