"""Problems with tables: all of them in one message, with the options that settle them."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphcl.errors import GraphError, TableError

UNKNOWN_ADVICE = (
    "add the missing rows to the node table, or pass --unknown-edges add, which makes nodes of "
    "them, or --unknown-edges drop, which leaves such edges out"
)


class Problem(NamedTuple):
    """Something that is wrong with a table.

    Attributes:
        message: what and where, and what to do.
        fix: words of a command line that settle it; empty where only the user can.
    """

    message: str
    fix: tuple[str, ...] = ()


def refuse(problems: Sequence[Problem]) -> None:
    """Raises one error for all problems, if there are any."""
    if problems:
        fix = together([problem.fix for problem in problems])
        raise TableError([problem.message for problem in problems], fix)


def together(fixes: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns the words that settle all problems, each option once.

    A problem without a remedy leaves nothing to paste.
    """
    if not all(fixes):
        return ()
    pairs: list[tuple[str, ...]] = []
    for word in (word for fix in fixes for word in fix):
        if word.startswith("--"):
            pairs.append((word,))
        else:
            pairs[-1] = (*pairs[-1], word)
    return tuple(word for pair in dict.fromkeys(pairs) for word in pair)


def collect(problems: list[Problem], check: Callable[..., object], *given: Any) -> None:
    """Makes a check whose failure does not keep others from being made."""
    try:
        check(*given)
    except GraphError as error:
        problems.append(Problem(str(error)))


def short(text: str) -> str:
    """Returns a cell as a message shows it."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def shell(name: str) -> str:
    """Returns a column's name as one types it."""
    return name if name.isidentifier() else shlex.quote(" ".join(name.split()))
