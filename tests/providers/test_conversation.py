"""A history that was damaged is mended on its way to a provider, and only there."""

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.loop.messages import Message, ToolCall
from app.loop.ports import ModelRequest
from app.providers.client import ModelSettings
from app.providers.conversation import INTERRUPTED, mapped_id, paired, unused_id
from app.providers.openai_request import request_body

USER = Message("user", "hi")
A, B = (ToolCall(f"call_{name}", "f", {}, "{}", f"p{name}") for name in "ab")


def turn(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, calls)


def result(call: ToolCall, content: str = "found") -> Message:
    return Message("tool", content, tool_call_id=call.id)


def interrupted(call: ToolCall) -> Message:
    return Message("tool", INTERRUPTED, tool_call_id=call.id)


class TestPairing:
    def test_a_whole_history_stays_as_it_is(self):
        history = [USER, turn(A, B), result(A), result(B), turn(text="done"), USER]
        with capture_logs() as logs:
            assert paired(history) == history
        assert logs == []

    def test_a_call_without_a_result_gets_one_that_says_so(self):
        """B05."""
        with capture_logs() as logs:
            assert paired([USER, turn(A, B), result(B), USER]) == [USER, turn(A, B), interrupted(A), result(B), USER]
        assert [(entry["event"], entry["calls_without_result"]) for entry in logs] == [("history_mended", 1)]

    def test_a_result_without_a_call_is_left_out(self):
        """B05."""
        assert paired([result(A), USER, turn(B), result(B), result(A)]) == [USER, turn(B), result(B)]

    def test_a_second_result_of_a_call_is_left_out(self):
        assert paired([turn(A), result(A, "1"), result(A, "2")]) == [turn(A), result(A, "1")]

    def test_results_stand_right_behind_their_turn_in_the_order_of_the_calls(self):
        """B08."""
        assert paired([turn(A, B), result(B), USER, result(A)]) == [turn(A, B), result(A), result(B), USER]

    def test_a_result_belongs_to_the_last_turn_that_made_such_a_call(self):
        """A43: also where one id was given twice."""
        first, second = result(A, "1"), result(A, "2")
        assert paired([turn(A), first, turn(A), second]) == [turn(A), first, turn(A), second]
        assert paired([turn(A), turn(A), second]) == [turn(A), interrupted(A), turn(A), second]

    def test_pairing_does_not_depend_on_a_text(self):
        """B11."""
        assert paired([turn(A, text="  "), result(A)]) == [turn(A, text="  "), result(A)]

    def test_a_turn_that_says_nothing_is_left_out_unless_a_model_wants_it_back(self):
        """A40."""
        kept = Message("assistant", "", native={"blocks": [{"type": "server_tool_use"}]}, native_model="m")
        assert paired([USER, turn(text=" \n"), kept, USER]) == [USER, kept, USER]

    def test_the_history_itself_is_not_touched(self):
        """B07: two calls on a broken history both pass."""
        history = [turn(A), USER]
        assert paired(history) == paired(history)
        assert history == [turn(A), USER]


calls = st.builds(
    lambda n, given: ToolCall(f"call_{n}", "f", {}, "{}", given), st.integers(0, 3), st.sampled_from([None, "x", "y:1"])
)
texts = st.sampled_from(["", " ", "a", "b "])
models = st.sampled_from([None, "openai/gpt"])
any_message = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), texts),
    st.builds(
        lambda text, calls, model: Message("assistant", text, tuple(calls), native_model=model),
        texts,
        st.lists(calls, max_size=3),
        models,
    ),
    st.builds(lambda text, n: Message("tool", text, tool_call_id=n and f"call_{n}"), texts, st.integers(0, 4)),
)
histories = st.lists(any_message, max_size=12)


class TestAnyHistory:
    @given(histories)
    def test_each_call_is_answered_once_and_at_once(self, history):
        open_calls: list[str] = []
        for message in paired(history):
            if message.role == "tool":
                assert message.tool_call_id == open_calls.pop(0)
            else:
                assert not open_calls
                open_calls = [call.id for call in message.tool_calls] if message.role == "assistant" else []
        assert not open_calls

    @given(histories)
    def test_mending_what_is_mended_changes_nothing(self, history):
        assert paired(paired(history)) == paired(history)

    @given(histories)
    def test_nothing_that_was_said_is_lost(self, history):
        def said(messages):
            return [(m.role, m.text) for m in messages if m.role != "tool" and m.text.strip()]

        assert said(paired(history)) == said(history)

    @given(histories)
    def test_a_chat_completions_server_takes_it(self, history):
        sent = request_body(ModelRequest(1, "m", history), ModelSettings("gpt", {}), "openai", "http://h/v1")["messages"]
        open_ids: list[str] = []
        for before, message in zip([None, *sent], sent, strict=False):
            if message["role"] == "tool":
                assert message["tool_call_id"] == open_ids.pop(0)
                continue
            assert not open_ids
            if message["role"] == "assistant":
                open_ids = [call["id"] for call in message.get("tool_calls", ())]
                assert len(set(open_ids)) == len(open_ids)
                assert open_ids or message["content"]
                assert before is None or before["role"] != "assistant"
        assert not open_ids


class TestChatCompletions:
    def test_two_assistant_turns_in_a_row_are_one(self):
        history = (USER, turn(text="one"), turn(A, text="two"), result(A), turn(text="three"))
        sent = request_body(ModelRequest(1, "m", history), ModelSettings("gpt", {}), "openai", "http://h/v1")["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant"]
        assert (sent[1]["content"], len(sent[1]["tool_calls"])) == ("one\n\ntwo", 1)


class TestIds:
    def test_an_id_that_some_server_refuses_is_always_mapped_to_the_same_one(self):
        """B22."""
        assert mapped_id("call_0") == "call_0"
        assert mapped_id("functions.x:1") == mapped_id("functions.x:1") != mapped_id("functions.x:2")
        assert len(mapped_id("a" * 70)) <= 40

    def test_an_id_that_is_used_is_made_another(self):
        assert (unused_id("a", {}), unused_id("a", {"a"}), unused_id("a", {"a", "a_2"})) == ("a", "a_2", "a_3")
