"""The spans of a run: itself, iterations, model calls and tool calls. Wraps of its ports, only while it is traced.

They hold ids of ours, names of models and tools, counts and outcomes: no text, and nobody of the caller's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from app.infra.tracing import tracer
from app.loop.events import Event, IterationCompleted, IterationStarted
from app.loop.messages import ModelFailure, Outcome, PendingCall, Reply, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import Emit, ModelRequest, Provider, Tools


class Untraced:
    """Leaves everything as it is."""

    def provider(self, inner: Provider) -> Provider:
        return inner

    def tools(self, inner: Tools) -> Tools:
        return inner

    def emit(self, inner: Emit) -> Emit:
        return inner

    def ended(self, outcome: Outcome) -> None:
        """How the run ended."""


class RunSpans(Untraced):
    """Of one run under one owner."""

    def __init__(self, made_by: Tracer, span: Span) -> None:
        self.tracer, self._span = made_by, span
        self._iteration: Span | None = None

    @property
    def within(self) -> Context:
        """Where a call belongs: to the iteration under way."""
        return set_span_in_context(self._iteration or self._span)

    def provider(self, inner: Provider) -> Provider:
        return _TracedProvider(self, inner)

    def tools(self, inner: Tools) -> Tools:
        return _TracedTools(self, inner)

    def emit(self, inner: Emit) -> Emit:
        def show(event: Event) -> None:
            if isinstance(event, IterationStarted):
                self.close()
                parent = set_span_in_context(self._span)
                named = {"rondo.iteration": event.iteration}
                self._iteration = self.tracer.start_span("iteration", context=parent, attributes=named)
            inner(event)
            if isinstance(event, IterationCompleted):
                self.close()

        return show

    def ended(self, outcome: Outcome) -> None:
        self._span.set_attributes(
            {
                "rondo.status": str(outcome.status),
                "rondo.finish_reason": str(outcome.finish_reason or ""),
                "rondo.iterations": outcome.iterations,
            }
        )
        if outcome.error_code is not None:
            self._span.set_status(Status(StatusCode.ERROR, str(outcome.error_code)))

    def close(self) -> None:
        """End the iteration under way."""
        if self._iteration is not None:
            self._iteration.end()
            self._iteration = None


@contextmanager
def spans_of(run: Mapping[str, Any]) -> Iterator[Untraced]:
    """The spans of a run while its loop runs."""
    made_by = tracer()
    if made_by is None:
        yield Untraced()
        return
    named = {
        "rondo.run_id": run["id"], "rondo.session_id": run["session_id"] or "", "rondo.agent_id": run["agent_id"] or "",
        "gen_ai.request.model": run["model"],
    }  # fmt: skip
    with made_by.start_as_current_span(
        "run", attributes=named, record_exception=False, set_status_on_exception=False
    ) as span:
        spans = RunSpans(made_by, span)
        try:
            yield spans
        finally:
            spans.close()


class _TracedProvider:
    def __init__(self, spans: RunSpans, inner: Provider) -> None:
        self._spans, self._inner = spans, inner

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        within = self._spans.within
        with self._spans.tracer.start_as_current_span(
            "model call", context=within, record_exception=False, set_status_on_exception=False
        ) as span:
            answer = await self._inner.ask(request)
            span.set_attribute("rondo.attempts", len(answer.attempts))
            if isinstance(answer, ModelFailure):
                span.set_status(Status(StatusCode.ERROR, str(answer.code)))
                return answer
            span.set_attributes(
                {
                    "gen_ai.response.model": answer.model,
                    "gen_ai.response.finish_reasons": [str(answer.finish_reason)],
                    "gen_ai.usage.input_tokens": answer.usage.input_tokens,
                    "gen_ai.usage.output_tokens": answer.usage.output_tokens,
                }
            )
            return answer


class _TracedTools:
    def __init__(self, spans: RunSpans, inner: Tools) -> None:
        self._spans, self._inner = spans, inner

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        named = {"gen_ai.tool.name": call.name, "rondo.call_id": call.id}
        made_by, within = self._spans.tracer, self._spans.within
        with made_by.start_as_current_span(
            "tool call", context=within, attributes=named, record_exception=False, set_status_on_exception=False
        ) as span:
            result = await self._inner.call(call)
            if isinstance(result, PendingCall):
                span.set_attribute("rondo.outcome", f"waits: {result.reason}")
                return result
            span.set_attributes({"rondo.outcome": str(result.outcome), "rondo.attempts": result.attempts})
            if result.outcome is ToolOutcome.FAILED:
                span.set_status(Status(StatusCode.ERROR))
            return result

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return await self._inner.received(call, result)
