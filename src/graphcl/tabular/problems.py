"""Problems with tables: all of them in one message, with the options that settle them."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from graphcl.errors import TableError


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
        words = [word for problem in problems for word in problem.fix]
        # A problem without a remedy leaves nothing to paste.
        settled = all(problem.fix for problem in problems)
        raise TableError([problem.message for problem in problems], tuple(words) if settled else ())


def short(text: str) -> str:
    """Returns a cell as a message shows it."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def shell(name: str) -> str:
    """Returns a column's name as one types it."""
    return name if name.isidentifier() else shlex.quote(" ".join(name.split()))
