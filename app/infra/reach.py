"""Whether an error tells that PostgreSQL or Redis is gone for now, rather than that something was wrong with a question."""

import asyncpg
from redis.exceptions import ConnectionError, TimeoutError
from sqlalchemy.exc import DBAPIError

_OUT_OF_REACH = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was being closed when it was asked for
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    ConnectionError,
    TimeoutError,
)

_CLOSED = "the handler is closed"
"""What uvloop says, in a RuntimeError, to whoever writes to a connection that was reset a moment ago."""


def is_out_of_reach(error: BaseException) -> bool:
    """Gone, restarting, or out of places: the same may well work a little later."""
    if isinstance(error, ValueError):  # asyncpg's DataError: an argument that fits no column
        return False
    if isinstance(error, RuntimeError) and _CLOSED in str(error):
        return True
    if isinstance(error, DBAPIError):
        return error.connection_invalidated
    return isinstance(error, _OUT_OF_REACH)
