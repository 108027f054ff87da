"""OpenTelemetry: the spans of a run, who continues whose trace, and that nothing of it is there while it is off."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.infra import tracing
from app.infra.settings import SettingsError
from tests.api import Api, TestTools, call
from tests.tools.webhook_server import WebhookServer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    tracing.use(None)
    provider.shutdown()


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


class TestSpans:
    async def test_a_run_has_its_iterations_and_they_have_their_calls(
        self, api: Api, test_tools: TestTools, spans: InMemorySpanExporter
    ) -> None:
        await test_tools.host(api, "search", {"items": ["SECRETRESULT"]})
        script = [call("search", {"q": "SECRETWORD"}, text="SECRETTEXT"), {"text": "SECRETEND"}]
        run = await api.run(await api.new_session(), *script, input="SECRETINPUT")
        found = [span for span in spans.get_finished_spans() if trace_of(span) == await _trace_of(spans, run["id"])]
        names = sorted(span.name for span in found)
        assert names == ["iteration", "iteration", "model call", "model call", "run", "tool call"]
        (whole,) = [span for span in found if span.name == "run"]
        iterations = [span for span in found if span.name == "iteration"]
        assert whole.context is not None
        assert {parent_of(span) for span in iterations} == {whole.context.span_id}
        ids = {span.context.span_id for span in iterations if span.context is not None}
        assert {parent_of(span) for span in found if span.name.endswith("call")} == ids
        assert whole.attributes is not None
        assert (whole.attributes["rondo.status"], whole.attributes["rondo.iterations"]) == ("completed", 2)
        assert "SECRET" not in "".join(span.to_json() for span in found)
        assert "organization" not in "".join(span.to_json() for span in found)

    async def test_a_callers_trace_is_continued_and_handed_on_to_webhooks(
        self, api: Api, test_tools: TestTools, spans: InMemorySpanExporter
    ) -> None:
        hook = await test_tools.host(api, "search", {"items": [1]})
        session = await api.new_session()
        body = {"input": "Hello", "model": "scripted/test", "script": [call("search"), "Done."]}
        headers = api.headers(traceparent=f"00-{TRACE}-{PARENT}-01")
        response = await api.http.post(f"/v1/sessions/{session}/runs", json=body, headers=headers)
        assert response.status_code == 200
        assert await _trace_of(spans, response.json()["id"]) == TRACE
        version, trace, parent, flags = hook.requests[0].headers["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "01")
        calls = [span for span in spans.get_finished_spans() if span.name == "tool call" and trace_of(span) == TRACE]
        assert parent in [f"{span.context.span_id:016x}" for span in calls if span.context is not None]

    async def test_while_it_is_off_no_header_goes_out(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", {"items": [1]})
        await api.run(await api.new_session(), call("search"), "Done.")
        assert "traceparent" not in hook.requests[0].headers


async def _trace_of(spans: InMemorySpanExporter, run_id: str) -> str:
    """The trace of a run, once its own span has ended."""
    async with asyncio.timeout(30):
        while True:
            for span in spans.get_finished_spans():
                if span.name == "run" and (span.attributes or {}).get("rondo.run_id") == run_id:
                    return trace_of(span)
            await asyncio.sleep(0.01)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookServer]:
    async with WebhookServer() as server:
        yield server


class TestSending:
    async def test_spans_go_where_the_environment_says(
        self, receiver: WebhookServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        stop = tracing.start()
        assert stop is not None
        made_by = tracing.tracer()
        assert made_by is not None
        made_by.start_span("run").end()
        await asyncio.to_thread(stop)
        (request,) = receiver.requests
        assert (request.path, b"rondo" in request.body) == ("/v1/traces", True)
        assert tracing.tracer() is None

    @pytest.mark.parametrize("named", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}])
    def test_it_is_off_unless_asked_for(self, monkeypatch: pytest.MonkeyPatch, named: dict[str, str]) -> None:
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        assert tracing.start() is None

    def test_without_the_extra_the_start_is_refused_and_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr(tracing, "_SDK", ("opentelemetry.no_such_sdk",))
        with pytest.raises(SettingsError, match=r"rondo\[otel\]"):
            tracing.start()
