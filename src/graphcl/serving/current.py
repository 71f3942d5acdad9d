"""The version of a run that answers, and the turn to another one while requests go on."""

import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from graphcl.errors import GraphCLError
from graphcl.runs.files import CONFIG
from graphcl.runs.versions import CURRENT, VERSIONS
from graphcl.serving.run import ServedRun

LOOK = 0.5  # seconds between two looks at the run
AGAIN = 30.0  # seconds until a version that could not be loaded is tried again
Mark = tuple[tuple[int, int], ...]


def mark_of(run: Path) -> Mark:
    """Returns what changes whenever another version of a run is used, or the run is replaced.

    Both files are replaced by a rename, so one that was never looked at has another number.
    """
    found = []
    for path in (run / CONFIG, run / VERSIONS / CURRENT):
        try:
            about = path.stat()
            found.append((about.st_ino, about.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return tuple(found)


class Current:
    """The version of a run that answers.

    A request keeps the version that it began with. A new one is loaded beside the old, in a thread;
    it answers once it has learned what the old one had learned, even if another is in use by then,
    and that one is next: of versions that come quicker than they are loaded, some are passed over.

    Args:
        load: returns the version in use, all of it; it is given the one before, or None.
        mark: returns what changes with the version in use.

    Attributes:
        served: the version.
    """

    def __init__(
        self,
        load: Callable[[ServedRun | None], ServedRun],
        mark: Callable[[], Mark] = lambda: (),
    ) -> None:
        self._load, self._mark = load, mark
        self._seen, self._again = mark(), 0.0
        self._failed: Mark | None = None
        self._closed = threading.Event()
        self.served = load(None)
        self.turn()

    def watch(self, *others: Callable[[], None]) -> None:
        """Looks at the run until it is closed; does other things as often, beside it."""

        def again(work: Callable[[], None]) -> None:
            while not self._closed.wait(LOOK):
                work()

        for work in (self.turn, *others):
            threading.Thread(target=again, args=(work,), name="watching", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._closed.set()

    def turn(self) -> None:
        """Turns to the version in use, if it is another."""
        mark = self._mark()
        if mark == self._seen or (mark == self._failed and time.monotonic() < self._again):
            return
        try:
            fresh = self._load(self.served)
            fresh.learn_as(self.served)
        except Exception as error:  # of any kind: the old version goes on answering
            said = str(error) if isinstance(error, GraphCLError) else f"bug: {error!r}"
            if self._mark() == mark:
                self._failed, self._again = mark, time.monotonic() + AGAIN
                text = f"serve: stays at version {self.served.version}: {said}"
                print(" ".join(text.split())[:500], file=sys.stderr, flush=True)
            return
        self.served, self._seen = fresh, mark
        gc.collect()
