"""What is said of tables: all problems in one message, and a report on what was found."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from graphcl.errors import GraphError, TableError, option
from graphcl.tabular.preparation import Preparation


def unknown_advice() -> str:
    """Says what to do where edges name nodes without a row."""
    return (
        f"add the missing rows to the node table, or pass {option('unknown_edges', 'add')}, which "
        f"makes nodes of them, or {option('unknown_edges', 'drop')}, which leaves such edges out"
    )


class Problem(NamedTuple):
    """Something that is wrong with a table.

    Attributes:
        message: what and where, and what to do.
        fix: an option's name and value that settle it; empty where only the user can.
    """

    message: str
    fix: tuple[str, str] | tuple[()] = ()


def refuse(problems: Sequence[Problem]) -> None:
    """Raises one error for all problems, if there are any."""
    if problems:
        fixes = dict.fromkeys(problem.fix for problem in problems if problem.fix)
        settled = all(problem.fix for problem in problems)  # else there is nothing to paste
        raise TableError([one.message for one in problems], tuple(fixes) if settled else ())


def collect(problems: list[Problem], read: Callable[..., Any], *given: Any) -> Any:
    """Returns what `read` does; its failure does not keep other things from being read."""
    try:
        return read(*given)
    except GraphError as error:
        problems.append(Problem(str(error)))
        return None


def short(text: str) -> str:
    """Returns a cell as a message shows it."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


@dataclass
class EdgeCounts:
    """Counts of what was found in the list of edges.

    Attributes:
        rows: rows of the list.
        self_loops: rows that join a node to itself; they are left out.
        repeated: rows that repeat an earlier one in the same direction; they are merged.
        both_directions: edges that are listed in both directions; each is one edge.
        edges: undirected edges that remain.
        dangling: rows that name a node that is not in the node table.
        symmetric: whether every edge is listed in both directions, with equal weights if any.
    """

    rows: int = 0
    self_loops: int = 0
    repeated: int = 0
    both_directions: int = 0
    edges: int = 0
    dangling: int = 0
    symmetric: bool = False


class ColumnOutcome(NamedTuple):
    """What became of a column of the node table.

    Attributes:
        column: its name.
        became: in a few words.
        features: number of features.
        missing: number of missing values.
    """

    column: str
    became: str
    features: int = 0
    missing: int = 0


@dataclass
class TableReport:
    """What was found in the tables; `notes` are lines for the user, most of them `Usual`.

    `first` are the lines that are shown before all others: warnings, and what was guessed of ids
    and ends. `fates` say what became of each column of the node table, in the table's order.

    Of a typed graph, `types` has a report on each type's table, `relations` what became of further
    columns of the lists of edges, and `notes` are about relations and the whole graph. `until` is
    the time until which rows count, if they have times.
    """

    first: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    added_nodes: int = 0
    filled_values: int = 0
    column_features: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    fates: list[ColumnOutcome] = field(default_factory=list)
    preparation: Preparation | None = None
    types: dict[str, "TableReport"] = field(default_factory=dict)
    relations: dict[str, list[ColumnOutcome]] = field(default_factory=dict)
    until: str = ""

    @property
    def lines(self) -> list[str]:
        """The notes; of a typed graph, first those on each type."""
        types = [
            line
            for name, one in self.types.items()
            for line in said_of(f"nodes {name}:", one.notes)
        ]
        return types + self.notes

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON has it; the preparation is kept elsewhere."""
        if self.types:
            lists = {
                name: [one._asdict() for one in fates] for name, fates in self.relations.items()
            }
            types = {name: report.to_json() for name, report in self.types.items()}
            return {"first": self.first, "notes": self.notes, "types": types, "relations": lists}
        left = ("preparation", "types", "relations")
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in left}
        fates = [fate._asdict() for fate in self.fates]
        return kept | {"counts": asdict(self.counts), "fates": fates}


class Usual(str):
    """A line on tables that are as most are: which column was taken for what, and how.

    It is said only to those who ask for all. Any other line says something that they should know.
    """


def said_of(head: str, lines: Iterable[str]) -> list[str]:
    """Returns lines with what they are about before them: a type, or a relation."""
    return [type(line)(f"{head} {line.removeprefix('nodes: ')}") for line in lines]


def head_of(what: str, name: str) -> str:
    """Returns how a line begins: ``edges writes:``, or ``edges:`` where there is no name."""
    return f"{what} {name}:" if name else f"{what}:"


def listed(names: Sequence[Any], most: int = 8) -> str:
    """Returns the first of some names, with a mark if there are more."""
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")
