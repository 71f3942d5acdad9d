"""Text for a terminal: characters that would steer it, or reorder what it shows, are escaped.

Ids, columns, classes and files have names that somebody else chose. Such a name may clear the
screen, overwrite a line or show its characters in another order. The command line therefore runs
every command inside `escaped_output`; a cell of a table is made one line by `escaped_cell`.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from typing import Any, TextIO, cast

_LINES = "\t\n"  # the only control characters that text of several lines needs
# Control characters, separators of lines, marks of writing direction, and halves of surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    r"""Returns a text with its line breaks and tabs, and all other unsafe characters as \uXXXX."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in _LINES else _code(found[0]), text)


def escaped_cell(value: object) -> str:
    r"""Returns a value as text in one line: unsafe characters, breaks and tabs as \uXXXX."""
    return _UNSAFE.sub(lambda found: _code(found[0]), str(value))


def _code(character: str) -> str:
    return f"\\u{ord(character):04x}"  # also valid in JSON, which is printed through the same door


class EscapedStream:
    """A stream that escapes what is written to another one."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Writes a text, escaped."""
        self.stream.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes several texts, escaped."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unescaped(stream: TextIO) -> TextIO:
    """Returns the stream itself: a progress bar steers the terminal, and escapes its own texts."""
    return stream.stream if isinstance(stream, EscapedStream) else stream


def escaping(stream: TextIO) -> TextIO:
    """Returns a stream that escapes what is written to `stream`."""
    return cast("TextIO", EscapedStream(unescaped(stream)))


def escaped_beside_bar(stream: TextIO) -> AbstractContextManager[None]:
    """Escapes what is printed beside a progress bar, if what `stream` takes is escaped.

    A bar puts streams of its own in the place of stdout and stderr.
    """
    return escaped_output() if isinstance(stream, EscapedStream) else nullcontext()


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escapes what is written to stdout and stderr for as long as the block lasts."""
    with redirect_stdout(escaping(sys.stdout)), redirect_stderr(escaping(sys.stderr)):
        yield
