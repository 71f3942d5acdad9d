"""Connections: those that keep the service waiting are closed, and none keeps the others out.

uvicorn closes a connection that is idle after an answer, but waits for ever for the rest of a head,
or for a client to read what it has asked for. When there are too many connections it refuses all
requests; here the one that has waited longest makes room.
"""

from typing import Any

from graphcl.errors import MissingExtraError
from graphcl.serving.gate import as_json

try:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise MissingExtraError("graphcl serve", "serve") from error

HEAD_SECONDS = 10  # until the head of a request must be there, from the last answer on
HEAD_BYTES = 1 << 13
HEAD_LINES = 100
CONNECTIONS = 512  # at a time


class Connection(H11Protocol):
    """A connection whose requests must begin in time."""

    _seen: Any = None  # the request that was answered when the wait began
    _since = 0.0
    _timer: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begins to watch; makes room if there are too many."""
        transport.max_size = HEAD_BYTES  # no connection takes long to read, or holds much unread
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > CONNECTIONS:
            waiting: Any = [one for one in self.connections if one.waits]  # type: ignore[union-attr]
            min(waiting, key=lambda one: one._since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends watching."""
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Whether it waits for its client: to ask, or to read an answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def data_received(self, data: bytes) -> None:
        """Reads on, but no more of a body than is asked for."""
        heads = () if self.conn.their_state is h11.SEND_BODY else data.split(b"\r\n\r\n")
        try:
            if any(head.count(b"\n") > HEAD_LINES for head in heads):
                self.send_400_response("")
                return
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense after an answer: there is nobody to talk to
            self.transport.abort()
        if self.cycle is not None and self.cycle.body and not self.cycle.response_complete:
            self.flow.pause_reading()

    def send_400_response(self, msg: str) -> None:
        """Says that a head makes no sense, as all errors are said, and closes."""
        del msg  # uvicorn's words
        body = as_json({"error": "this is no HTTP request, or its head is too long"})
        kind = (b"content-type", b"application/json")
        headers = [kind, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._watch()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Closes it, once a request under way is answered."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def _watch(self) -> None:
        self._seen, self._since = self.cycle, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end)

    def _end(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if (idle and self._seen is self.cycle) or self.transport.is_closing():
            self.transport.abort()  # what is not read by now never is
        else:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._end)
