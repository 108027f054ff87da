"""Every table, imported once, so that migrations and their tests see the whole schema."""

from app.agents import models as agents
from app.auth import models as auth
from app.custom_providers import models as custom_providers
from app.idempotency import IdempotencyKey
from app.memories import models as memories
from app.redaction import models as redaction
from app.rules import models as rules
from app.runs import models as runs
from app.sessions import models as sessions
from app.sessions import tokens as session_tokens
from app.subscriptions import models as subscriptions
from app.tools import models as tools
from app.usage import models as usage

__all__ = [
    "IdempotencyKey", "agents", "auth", "custom_providers", "memories", "redaction", "rules", "runs", "session_tokens",
    "sessions", "subscriptions", "tools", "usage",
]  # fmt: skip
