"""Connections that send nothing, or half a request, are closed after a while.

uvicorn closes a connection that is idle after an answer, but waits for ever for the rest of a head.
A few hundred such connections would keep everybody else out.
"""

from typing import Any

from graphcl.errors import MissingExtraError

try:
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

HEAD_SECONDS = 10.0  # until the head of a request must be there, at least; at most twice that


class Connection(H11Protocol):
    """A connection whose requests must begin in time."""

    _seen: Any = ()  # what was under way when it was last looked at
    _timer: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begins to watch."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends watching."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._seen is self.cycle:  # nothing has begun since
            self.transport.close()
            return
        self._seen = self.cycle if idle else ()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._watch)
