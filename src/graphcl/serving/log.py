"""The log of the service: what happens, line by line, and a stderr of which each line is an object.

A line about a request is written by `graphcl.serving.middleware`; other events are named here. With
``--log json``, every line on stderr is one JSON object, whoever writes it: the service, uvicorn,
Python's warnings, and threads that fail.
"""

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

LINES, JSON, NONE = FORMS = ("lines", "json", "none")
STARTED, STOPPED = "started", "stopped"
VERSION, FAILED = "version", "load failed"  # another version answers; it could not be loaded
WORKER, BUG, MAP, MESSAGE = "worker died", "bug", "no map", "message"
LONGEST = 500  # characters of an event


class Log:
    """Tells what happens to a service.

    Args:
        form: ``lines`` or ``json``; with ``none``, lines about requests alone are left out.
    """

    def __init__(self, form: str = LINES) -> None:
        self.form = form

    def event(self, name: str, text: str, **about: Any) -> None:
        """Writes a line about something else than a request.

        Args:
            name: which event it is.
            text: what happened, for readers.
            about: what else is known, for machines.
        """
        text = " ".join(text.split())[:LONGEST]
        if self.form == JSON:
            write_object({"event": name, "message": text, "process": os.getpid(), **about})
        else:
            print(f"serve: {text}", file=sys.stderr, flush=True)


def now() -> str:
    """Returns the time as lines of the log have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def write_object(about: dict[str, Any]) -> None:
    """Writes a JSON object as a line on stderr, in one piece."""
    line = json.dumps({"time": now(), **about}) + "\n"
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(2, line.encode("ascii"))


class ObjectLines(io.TextIOBase):
    """A stderr of which each line becomes a JSON object with the key ``message``.

    What several threads write at the same time does not mix.
    """

    def __init__(self) -> None:
        self._begun = threading.local()

    def writable(self) -> bool:
        """Returns that it can be written to."""
        return True

    def write(self, text: str) -> int:
        """Writes text; a line is sent when it ends."""
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest
        for line in lines:
            if line.strip():
                write_object({"event": MESSAGE, "message": line, "process": os.getpid()})
        return len(text)

    def close(self) -> None:
        """Sends what is left of a line; the process keeps its stderr."""
        if getattr(self._begun, "text", ""):
            self.write("\n")


@contextlib.contextmanager
def objects_on_stderr() -> Iterator[None]:
    """Makes an object of each line that is written on stderr, for as long as the block lasts."""
    before, sys.stderr = sys.stderr, ObjectLines()
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
