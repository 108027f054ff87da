"""PostgreSQL and Valkey as child processes, for a start without any set-up."""

from app.infra.embedded.launcher import EmbeddedServers, Servers
from app.infra.embedded.processes import EmbeddedServersError

__all__ = ["EmbeddedServers", "EmbeddedServersError", "Servers"]
