"""Every error this package raises on purpose.

    GraphCLError
    ├── InvalidInputError (ValueError)   the caller's input is at fault
    │   ├── ParameterError               one parameter: who, which, the constraint, the value
    │   ├── GraphError                   edges, features, labels or masks that do not form a graph
    │   │   └── TableError               all that is wrong with tables
    │   ├── DatasetError                 a dataset that is unknown, absent or damaged
    │   ├── RecipeError                  a recipe that is unknown or does not parse
    │   ├── StoreError                   a store that is missing or damaged, or exists already
    │   ├── RunError                     a run that is missing or damaged, or exists already
    │   └── PartError                    an encoder, perturbation or loss of the user's own failed
    ├── MissingExtraError (ImportError)  an optional dependency is not installed
    └── TrainingError                    training cannot continue, or would not fit into memory
    TrainingEndedError  training was interrupted, or a process of its group died
    TrainingWarning     training ended, but there are signs that it failed

The command line reports each of them in one line, with exit code 2. Any other error is a bug.
"""

import difflib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class GraphCLError(Exception):
    """Base of every error raised on purpose."""


class InvalidInputError(GraphCLError, ValueError):
    """The caller's input is at fault."""


class ParameterError(InvalidInputError):
    """A parameter breaks its constraint."""


class GraphError(InvalidInputError):
    """Edges, features, labels or masks do not form a graph."""


_SHOWN = 30  # problems that a message lists


class TableError(GraphError):
    """Tables have problems, all of which are listed.

    Attributes:
        problems: a message for each.
        fix: names and values of options that settle all of them; empty where only the user can.
    """

    def __init__(self, problems: Sequence[str], fix: Sequence[tuple[str, str]] = ()) -> None:
        self.problems, self.fix = tuple(problems), tuple(fix)
        count = len(self.problems)
        shown = enumerate(self.problems[:_SHOWN], 1)
        listed = "".join(f"\n  {place}. {text}" for place, text in shown)
        listed += f"\n  … and {count - _SHOWN:,} more" if count > _SHOWN else ""
        super().__init__(self.problems[0] if count == 1 else f"{count} problems:{listed}")


class DatasetError(InvalidInputError):
    """A dataset is unknown, absent or damaged."""


class RecipeError(InvalidInputError):
    """A recipe is unknown or does not parse."""


class StoreError(InvalidInputError):
    """A store is missing or damaged, or exists already."""


class RunError(InvalidInputError):
    """A run directory is missing or damaged, or exists already."""


class PartError(InvalidInputError):
    """An encoder, a perturbation or a loss of the user's own failed; its error is the cause."""


class MissingExtraError(GraphCLError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'graphcl[{extra}]'")


def why_failed(error: OSError) -> str:
    """Returns why a file could not be read or written, in words; NumPy gives two numbers alone."""
    short = "" if error.strerror else f"{error} bytes: is the disk full?"
    return error.strerror or (short if "requested and" in short else str(error))


def import_extra(*modules: str, feature: str, extra: str) -> Any:
    """Imports modules of an optional dependency, which a feature needs, and returns the first.

    Raises:
        MissingExtraError: one is not installed; the message names the extra.
    """
    try:
        first, *_ = [import_module(name) for name in modules]
        return first
    except ImportError as error:
        raise MissingExtraError(feature, extra) from error


class TrainingError(GraphCLError):
    """Training cannot continue, or would not fit into memory."""


class TrainingEndedError(Exception):
    """Training ended early, and not by an error in what the user gave.

    Attributes:
        code: the exit code: 130 interrupted, 1 where torchrun should start the process again.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class TrainingWarning(UserWarning):
    """A training ended as usual, but there are signs that it failed."""


# In the environment while a command runs, so that its threads and its processes know it.
_COMMAND = "GRAPHCL_COMMAND"
_NAMES = {
    "node_type": "type",
    "layout": "map",
    "cache_bytes": "cache",
    "settings": "set",
    "using": "with",
}
_LISTS = ("one_hot", "text", "date", "ignore")  # keywords that take several columns


@contextmanager
def command_running() -> Iterator[None]:
    """Lets messages name the options of the command line instead of Python's keywords."""
    before = os.environ.get(_COMMAND)
    os.environ[_COMMAND] = "1"
    try:
        yield
    finally:
        os.environ.pop(_COMMAND)
        if before is not None:
            os.environ[_COMMAND] = before


def is_command() -> bool:
    """Returns whether a command runs, rather than a program that calls the library."""
    return _COMMAND in os.environ


def option_of(name: str) -> str:
    """Returns the option of the command line for one of Python's keywords."""
    return "--" + _NAMES.get(name, name).replace("_", "-")


def option(name: str, value: Any = None, *, of: str = "", written: str = "") -> str:
    """Returns what the caller can pass: ``--weight w`` on the command line, else ``weight='w'``.

    Args:
        name: the keyword in Python.
        value: None leaves it out; True and False are flags on the command line.
        of: the type or relation that the value is of.
        written: the value as a shell takes it, unless it is to be quoted as usual.
    """
    if not is_command():
        value = [value] if value is not None and name in _LISTS else value
        return name if value is None else f"{name}={ ({of: value} if of else value)!r}"
    if value is None or isinstance(value, bool):
        return option_of(name if value is not False else f"no_{name}")
    text = " ".join(str(value).split())
    written = written or (text if text.isidentifier() else shlex.quote(text))
    return f"{option_of(name)} {of}{'=' if of else ''}{written}"


def require(condition: bool, owner: str, parameter: str, constraint: str, value: object) -> None:
    """Raises a `ParameterError` unless `condition` holds; all its messages have the same form."""
    if not condition:
        raise ParameterError(f"{owner}: {parameter} must be {constraint}; got {value!r}")


def demand(condition: object, message: str, error: type[Exception] = GraphError) -> None:
    """Raises an error with a message unless `condition` holds."""
    if not condition:
        raise error(message)


def typed(value: Any, kind: Any, *, owner: str, key: str, texts: bool = False) -> Any:
    """Converts `value` to a plain `kind`: int, float, str or bool; NumPy's numbers are numbers.

    With `texts`, such as a command line's, a text is read as that kind; else it is none but text.

    Raises:
        ParameterError: the value cannot be converted exactly; `owner` and `key` name it.
    """
    try:
        if isinstance(value, str) and kind is not str and not texts:
            raise ValueError
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise ValueError
        result = kind(value)
        if not isinstance(value, str) and result != value:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ParameterError(f"{owner}: {key} must be {_KINDS[kind]}; got {value!r}") from None
    return result


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` for the nearest known name, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_known(
    name: str,
    known: Iterable[str],
    *,
    what: str,
    listed: str = "known:",
    error: type[InvalidInputError],
) -> None:
    """Refuses a name that is not known, lists those that are, and suggests the nearest.

    Args:
        name: the name.
        known: all names.
        what: begins the message: ``unknown dataset``.
        listed: stands before the known names.
        error: what is raised.
    """
    if name not in known:
        names = ", ".join(known)
        raise error(f"{what} {name!r}; {listed} {names}{suggestion(name, known)}")


def check_keys(
    given: Iterable[str],
    known: Sequence[str],
    *,
    where: str,
    error: type[InvalidInputError],
    what: str = "key",
) -> None:
    """Refuses a key that is not known, and suggests the nearest, or else lists all."""
    for key in given:
        if key not in known:
            listed = f"; known: {', '.join(known)}" if known else "; it has none"
            raise error(f"{where}: unknown {what} {key!r}{suggestion(key, known) or listed}")


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns ``1 row`` or ``2 rows``."""
    return f"1 {one}" if number == 1 else f"{number:,} {several or one + 's'}"


def duration(seconds: float) -> str:
    """Returns seconds as ``12 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
