"""How a process ends: by Ctrl-C and SIGTERM, of which the first asks and the second insists."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Never

import typer


class Interrupts:
    """Whether the user, or whoever runs this machine, has asked the process to stop.

    Attributes:
        asked: whether a first signal came while `patient`.
        patient: whether to wait for the next step's end; else a signal stops the process at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def __call__(self) -> bool:
        """Returns `asked`."""
        return self.asked

    def receive(self, _number: int, _frame: Any) -> None:
        """Takes a signal."""
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True
        print("\nsaving after this step; Ctrl-C again stops now", file=sys.stderr, flush=True)


class Ending:
    """How the process ends when its command is done.

    Attributes:
        at_once: whether the interpreter's shutdown is skipped. It ends the threads of some
            libraries in no fixed order, and aborts where one is still computing.
    """

    at_once = False


def end(code: int) -> Never:
    """Ends the process."""
    if not Ending.at_once:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Yields the process's interrupts, SIGINT and SIGTERM alike, for as long as the block lasts."""
    taken = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield taken  # Python delivers signals to the main thread alone
        return
    with handled(taken.receive):
        yield taken


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Sends SIGINT and SIGTERM to `receive` for as long as the block lasts."""
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(one, receive) for one in signals]
    try:
        yield
    finally:
        for one, handler in zip(signals, previous, strict=True):
            signal.signal(one, handler)


@contextmanager
def continues(command: str, kept: str, path: Path) -> Iterator[None]:
    """If the block is interrupted, says which file has its results, and exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"graphcl {command}: interrupted; finished {kept} are in {path}"
        print(f"{text}; the same command continues from there", file=sys.stderr)
        raise typer.Exit(130) from None
