"""Logs and metrics. A log line carries the ids of its request, session and run; metrics have no such labels."""

import logging
import sys
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

log: structlog.stdlib.BoundLogger = structlog.get_logger("rondo")

registry = CollectorRegistry()
RUNS = Counter("rondo_runs", "Runs ended, by status and finish reason.", ["status", "reason"], registry=registry)
ACTIVE_RUNS = Gauge("rondo_active_runs", "Runs under way in this process.", registry=registry)
OPEN_STREAMS = Gauge("rondo_open_streams", "Event streams open in this process.", registry=registry)
ITERATIONS = Counter("rondo_iterations", "Iterations whose reply was stored.", registry=registry)
TOOL_SECONDS = Histogram(
    "rondo_tool_seconds", "Seconds of a tool call, with its retry, by outcome.", ["outcome"], registry=registry,
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)  # fmt: skip
TOKENS = Counter("rondo_tokens", "Tokens of model calls, by kind.", ["kind"], registry=registry)
JOBS = Counter("rondo_jobs", "Background jobs, by name and result.", ["job", "result"], registry=registry)
TOOL_CALLS = Counter("rondo_tool_calls", "Tool calls, by outcome.", ["outcome"], registry=registry)
MODEL_CALLS = Counter("rondo_model_calls", "Attempts at model calls, by result.", ["result"], registry=registry)
FIRST_TOKEN_SECONDS = Histogram("rondo_first_token_seconds", "Seconds to a model's first token.", registry=registry)
MODEL_SECONDS = Histogram("rondo_model_seconds", "Seconds of a model call.", registry=registry)
STALE_WRITES_REFUSED = Counter(
    "rondo_stale_writes_refused", "What owners that had lost a run were refused, by kind.", ["kind"], registry=registry
)
EVENTS_DROPPED = Counter("rondo_events_dropped", "Events that readers take from the rows instead.", registry=registry)
DELIVERIES = Counter("rondo_deliveries", "Tries to deliver to subscriptions, by result.", ["result"], registry=registry)
DISTILLATIONS = Counter(
    "rondo_distillations", "Tries to draw memories from a stretch of messages, by result.", ["result"], registry=registry
)
NOTES_DROPPED = Counter(
    "rondo_notes_dropped", "Notes that a model proposed and that were not kept, by reason.", ["reason"], registry=registry
)
COMPRESSIONS = Counter(
    "rondo_compressions", "Tries to summarise a session's older turns, by result.", ["result"], registry=registry
)
SHORTENED = Counter(
    "rondo_shortened_prompts",
    "Prompts that did not fit a model's window, by what was left out.",
    ["what"],
    registry=registry,
)
REFUSALS = Counter("rondo_refusals", "Requests refused for a limit, by limit.", ["limit"], registry=registry)
REQUESTS = Counter(
    "rondo_http_requests",
    "Requests answered, by method, route and status.",
    ["method", "route", "status"],
    registry=registry,
)
REQUEST_SECONDS = Histogram(
    "rondo_http_request_seconds", "Seconds from a request to the head of its answer.", ["method", "route"], registry=registry
)
DATABASE_UP = Gauge("rondo_database_up", "Whether PostgreSQL answered just now.", registry=registry)
REDIS_UP = Gauge("rondo_redis_up", "Whether Redis answered just now.", registry=registry)
POOL_CONNECTIONS = Gauge(
    "rondo_pool_connections", "Connections to PostgreSQL, by pool and state.", ["pool", "state"], registry=registry
)
POOL_MOST = Gauge("rondo_pool_connections_most", "Connections that a pool may have.", ["pool"], registry=registry)
QUEUED_RUNS = Gauge(
    "rondo_queued_runs", "Runs of all processes that are due and wait for a place in one.", registry=registry
)
QUEUE_WAIT = Gauge("rondo_queue_wait_seconds", "How long the first of them has waited.", registry=registry)
EVENT_LAG_SECONDS = Histogram(
    "rondo_event_lag_seconds", "Seconds that a group of events waited before readers could see it.", registry=registry,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30),
)  # fmt: skip
STREAMS_REBUILT = Counter(
    "rondo_streams_rebuilt", "Times that readers were given events from the rows, since the log had lost them.",
    registry=registry,
)  # fmt: skip
EVENT_APPENDS = Counter("rondo_event_appends", "Groups of events written to the log.", registry=registry)


def configure_logging(level: str, style: str) -> None:
    """`style`: `json`, `text`, or `auto` (text on a terminal). Logs go to stderr."""
    readable = style == "text" or (style == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if readable:
        shared.append(structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
    else:
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
