"""OpenTelemetry traces, where `OTEL_EXPORTER_OTLP_ENDPOINT` says where to; its SDK comes with the extra `rondo[otel]`.

While it is off nothing is measured, wrapped or sent. What is set beside the endpoint are OpenTelemetry's own variables.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module

from opentelemetry import context, propagate
from opentelemetry.trace import Tracer, TracerProvider

from app.infra.settings import SettingsError

_SDK = (
    "opentelemetry.sdk.trace", "opentelemetry.sdk.resources", "opentelemetry.sdk.trace.export",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)  # fmt: skip
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_tracer: Tracer | None = None


def start() -> Callable[[], None] | None:
    """Begin to send traces if the environment says so; what comes back ends it. Raises SettingsError without the extra."""
    named = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if named is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        # by name, so that a process that sends nothing does not load them
        sdk, resources, export, otlp = map(import_module, _SDK)
    except ImportError:
        raise SettingsError(f"{named} is set, and the extra `rondo[otel]` is not installed") from None
    name = os.environ.get("OTEL_SERVICE_NAME", "rondo")
    provider = sdk.TracerProvider(resource=resources.Resource.create({resources.SERVICE_NAME: name}))
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    use(provider)

    def stop() -> None:
        use(None)
        provider.shutdown()

    return stop


def use(provider: TracerProvider | None) -> None:
    """Send spans to a provider from now on; None: nowhere."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("rondo")


def tracer() -> Tracer | None:
    """None while it is off."""
    return _tracer


def headers() -> dict[str, str]:
    """What hands the present span on to whom we call: `traceparent`; nothing while it is off."""
    named: dict[str, str] = {}
    if _tracer is not None:
        propagate.inject(named)
    return named


@contextmanager
def continued(given: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
    """Within a request: what begins here belongs to the trace that its headers name, if they do."""
    if _tracer is None:
        yield
        return
    carried = {name.decode("latin-1"): value.decode("latin-1") for name, value in given}
    token = context.attach(propagate.extract(carried))
    try:
        yield
    finally:
        context.detach(token)
