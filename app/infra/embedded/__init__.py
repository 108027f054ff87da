"""PostgreSQL and Valkey as child processes, for a start without any set-up."""

from app.infra.embedded.processes import EmbeddedServersError
from app.infra.embedded.servers import EmbeddedServers, Servers

__all__ = ["EmbeddedServers", "EmbeddedServersError", "Servers"]
