"""The options for reading tables, and the report on what was found in them."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from graphcl.errors import GraphError, require
from graphcl.errors import counted as counted
from graphcl.tabular.duck import is_query
from graphcl.tabular.edges import EdgeCounts
from graphcl.tabular.preparation import Preparation

MISSING = ("auto", "refuse", "zero", "mean")
COLUMNS = ("label", "one_hot", "text", "date", "ignore")  # options that name several columns
ONE_EACH = ("id_column", "split", "source_column", "target_column", "weight")
FEATURES = ("columns", "structural", "both")
DUPLICATES = ("first", "last", "refuse")
UNKNOWN_EDGES = ("add", "drop", "refuse")
CHOICES = {
    "missing": MISSING,
    "features": FEATURES,
    "duplicates": DUPLICATES,
    "unknown_edges": UNKNOWN_EDGES,
}
_PREPARED = ("preparation", "preparations", "edge_preparations")  # of a training, no options
_DATE = re.compile(r"(?=.*%)([^%]|%-?[aAbBdfgHIjmMnpSyYzZ%]){1,80}")  # as DuckDB reads it
MANY_ISOLATED = 0.1  # a larger share of nodes without an edge is a warning
FILES = ("nodes", "edges", "tags", "vectors", "vector_ids")  # options that name files


@dataclass(frozen=True)
class TableOptions:
    """How to read tables.

    Attributes:
        nodes: the node table: a file, ``FILE:TABLE`` of a database, an SQL query, or a feature
            matrix; from Python also a DataFrame, an Arrow table, or a matrix of NumPy or SciPy. Of
            a typed graph, a mapping from types to such tables.
        edges: of a typed graph: a mapping from relations to lists of edges. A relation is named
            ``writes``, or ``author:writes:paper`` with the types of its ends.
        relation: column of a list of edges that names the relation of each edge.
        directed: an edge and its reverse differ: the graph is a typed one.
        tags: a long table, whose rows are a node's id, a name and perhaps a value: each name is a
            feature. In the same forms as `nodes`. Or the names of its columns (``page,keyword``),
            if `nodes` is such a table.
        tag_columns: the columns of `tags`: ids, names and perhaps values; empty guesses them.
        vectors: an `.npy` file with a vector for each row of the node table; from Python also an
            array.
        vector_ids: the ids of the vectors, if they are in another order: an `.npy` file or a
            table; from Python also a list.
        node_ids: from Python: the ids of the rows, if `nodes` is a matrix of NumPy or SciPy.
        source_column: column of the edges' first ends; None guesses it.
        target_column: column of the edges' second ends; None guesses it.
        weight: column of positive edge weights; None leaves edges unweighted.
        id_column: column of the nodes' ids; None guesses it.
        label: column of the nodes' classes, or several columns: a node then has several labels.
            Columns of zeros and ones are a label each; of others, each value is a label.
        label_separator: what stands between the labels in a cell, such as ``|``.
        split: column with the values train, val and test.
        one_hot: columns of categories: one feature for each.
        text: columns of texts to read: 64 features for each.
        date: columns of dates, where their values do not say so plainly.
        decimal: the mark before the decimals of numbers in texts: ``.`` or ``,``; the other one
            parts thousands. None guesses it for each column whose values fit one of them alone.
        date_format: how texts write dates, such as ``%d/%m/%Y``. None guesses the order of day and
            month where a column's values fit one order alone.
        ignore: columns of the node table to leave out.
        missing: ``refuse`` missing values, or fill in ``zero`` or the ``mean`` of the training
            rows; ``auto`` fills in the mean if at most a fifth of a column is missing.
        strict: refuse what would otherwise be guessed: categories, dates, missing values, columns
            without a value.
        duplicates: of rows of the node table with the same id keep the ``first`` or the ``last``,
            or ``refuse`` them.
        unknown_edges: of edges that name nodes without a row: ``add`` these nodes, with features of
            zero and without a label; ``drop`` the edges; or ``refuse`` them.
        features: ``columns``, ``structural`` (computed from the edges alone) or ``both``.
        header: whether delimited files begin with column names; None guesses it.
        inductive: take statistics (means, categories, …) from the training rows of the split alone.
        preparation: what the columns become, as a training has decided it.
        preparations: the same for each type of a typed graph.
        edge_preparations: the same for the lists of edges, by ``source:name:target``; a relation
            that is missing has no features. None decides it by what the columns hold.

    Of a typed graph, options that name a column or a file are of one type as ``author=name``, or a
    mapping from types; see `graphcl.tabular.typed_options`.
    """

    nodes: Any = None
    edges: Any = None
    relation: str | None = None
    directed: bool = False
    tags: Any = None
    tag_columns: tuple[str, ...] = ()
    vectors: Any = None
    vector_ids: Any = None
    node_ids: Any = None
    source_column: Any = None
    target_column: Any = None
    weight: Any = None
    id_column: Any = None
    label: tuple[str, ...] = ()
    label_separator: str | None = None
    split: Any = None
    one_hot: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    decimal: str | None = None
    date_format: str | None = None
    ignore: tuple[str, ...] = ()
    missing: str = "auto"
    strict: bool = False
    duplicates: str = "refuse"
    unknown_edges: str = "refuse"
    features: str = "columns"
    header: bool | None = None
    inductive: bool = False
    preparation: Preparation | None = field(default=None, repr=False)
    preparations: Mapping[str, Preparation] | None = field(default=None, repr=False)
    edge_preparations: Mapping[str, Preparation] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in COLUMNS:  # one column may be given as a text
            value = getattr(self, name)
            if isinstance(value, Mapping):  # of the types of a typed graph
                value = _of_types(value)
            listed = () if value is None else (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, listed)
        for name in ONE_EACH:
            value = getattr(self, name)
            several = isinstance(value, Mapping | tuple | list)
            if several and len(value) > 0 and not self.is_typed:
                option = "--" + name.replace("_", "-")
                raise GraphError(
                    f"{option}: {', '.join(map(str, value))}: a graph of one type has one column; "
                    f"give {option} once"
                )
        self._set_tags()
        for name, known in CHOICES.items():
            value = getattr(self, name)
            option = "--" + name.replace("_", "-")
            require(value in known, "tables", option, " or ".join(known), value)
        require(self.decimal in (None, ".", ","), "tables", "--decimal", ". or ,", self.decimal)
        dated = self.date_format is None or _DATE.fullmatch(self.date_format) is not None
        require(dated, "tables", "--date-format", "such as %d/%m/%Y", self.date_format)
        separator = self.label_separator
        require(separator != "", "tables", "--label-separator", "not empty", separator)

    def _set_tags(self) -> None:
        """Reads column names that are given as one text; moves a long node table to `tags`."""
        tags: Any = self.tags
        columns: Any = self.tag_columns
        if self.is_typed:
            if not isinstance(columns, Mapping):
                listed = (columns,) if isinstance(columns, str) else tuple(columns or ())
                object.__setattr__(self, "tag_columns", listed)
            return
        listed = (columns,) if isinstance(columns, str) else tuple(columns or ())
        if len(listed) == 1:  # as a command line gives them
            listed = tuple(listed[0].split(","))
        if isinstance(tags, str) and _names_columns(tags):
            require(not listed, "tables", "--tag-columns", "left out if --tags names columns", "")
            if self.nodes is None:
                raise GraphError(f"--tags: no such file: {tags}; columns are those of --nodes")
            listed = tuple(tags.split(","))
            object.__setattr__(self, "tags", self.nodes)
            object.__setattr__(self, "nodes", None)
        listed = tuple(name.strip() for name in listed)
        object.__setattr__(self, "tag_columns", listed)
        allowed = "the columns of ids and of names, and perhaps of values: page,keyword"
        fits = not listed or (len(listed) in (2, 3) and all(listed))
        require(fits, "tables", "--tag-columns", allowed, ",".join(listed))

    @property
    def is_typed(self) -> bool:
        """Whether the tables are those of a typed graph."""
        named = self.edges is not None or self.relation is not None or self.directed
        return named or holds_tables(self.nodes)

    def given(self) -> dict[str, Any]:
        """Returns the options that differ from the defaults; a preparation is not an option."""
        pairs = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        found = {name: value for name, value, default in pairs if not _same(value, default)}
        for name in _PREPARED:
            found.pop(name, None)
        return found

    def record(self) -> str:
        """Returns the options as JSON, to read these tables or similar ones again."""
        return json.dumps(self.given())

    @classmethod
    def from_record(
        cls,
        text: str,
        preparation: Preparation | None,
        **of_types: Any,
    ) -> "TableOptions":
        """Reads what `record` returned; the text may be damaged.

        `of_types` are the preparations of a typed graph, as the attributes of those names.

        Raises:
            ValueError: it is.
        """
        try:
            given = json.loads(text)
            if not isinstance(given, dict) or any(name in given for name in _PREPARED):
                raise ValueError("not options")
            lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
            return cls(**given | lists, preparation=preparation, **of_types)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def after(self, trained: "TableOptions") -> "TableOptions":
        """Returns these options, completed from the options of the training tables.

        An option that is not given is taken from `trained`, except those in `own`, which describe
        particular tables.
        """
        own = (
            "nodes",
            "edges",
            "tags",
            "vectors",
            "vector_ids",
            "node_ids",
            "label",
            "label_separator",
            "split",
            "ignore",
            "duplicates",
            "unknown_edges",
            "strict",
        )
        kept = {name: value for name, value in trained.given().items() if name not in own}
        merged = TableOptions(**kept | self.given())
        return replace(merged, **{name: getattr(trained, name) for name in _PREPARED})

    @property
    def names(self) -> frozenset[str]:
        """All column names that are given, in lower case."""
        found = []
        for one in (*ONE_EACH, *COLUMNS, "relation", "tag_columns"):
            value = getattr(self, one)
            several = value.values() if isinstance(value, Mapping) else value or ()
            listed = (several,) if isinstance(several, str) else several
            found += [part for text in listed for part in (text, text.partition("=")[2])]
        return frozenset(name.lower() for name in found if name)


class Fate(NamedTuple):
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
    """What was found in the tables; `notes` are the lines that are shown to the user.

    `first` are the lines that are shown before all others: warnings, and what was guessed of ids
    and ends. `fates` say what became of each column of the node table, in the table's order.
    """

    first: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    counts: EdgeCounts = field(default_factory=EdgeCounts)
    added_nodes: int = 0
    isolated_nodes: int = 0
    filled_values: int = 0
    column_features: list[str] = field(default_factory=list)
    structural_features: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] = ()
    fates: list[Fate] = field(default_factory=list)
    preparation: Preparation | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON has it; the preparation is kept elsewhere."""
        kept = {one.name: getattr(self, one.name) for one in fields(self)}
        kept |= {"counts": asdict(self.counts), "fates": [fate._asdict() for fate in self.fates]}
        del kept["preparation"]
        return kept


def say_isolated(report: Any, kind: str, count: int, total: int) -> None:
    """Adds to a report how many nodes have no edge, as a warning and first if they are many.

    `kind` is their type; empty in a plain graph.
    """
    if count > MANY_ISOLATED * total:
        of = f" of {kind}" if kind else ""
        said = (
            f"{count:,} of {counted(total, 'node')}{of} {'has' if count == 1 else 'have'} no edge"
        )
        report.first.insert(0, f"warning: {said}")
    elif count:
        head = f"nodes {kind}:" if kind else "nodes:"
        report.notes.append(f"{head} {counted(count, 'node has', 'nodes have')} no edge")


def holds_tables(given: Any) -> bool:
    """Returns whether something is a mapping from names to tables, not one table of columns."""
    if not isinstance(given, Mapping) or not given:
        return False
    named = (str, Path, Mapping)
    return all(
        isinstance(one, named) or hasattr(one, "columns") or getattr(one, "ndim", 0) == 2
        for one in given.values()
    )


def _of_types(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns ``author=name`` for each column of each type."""
    return tuple(
        f"{kind}={column}"
        for kind, columns in given.items()
        for column in ([columns] if isinstance(columns, str) else columns)
    )


def _same(value: Any, default: Any) -> bool:
    """Returns whether an option has its default; a table or an array never has."""
    plain = value is None or isinstance(value, str | bool | tuple)
    return bool(value == default) if plain else value is default


def _names_columns(text: str) -> bool:
    """Returns whether ``--tags`` gives columns, such as ``page,keyword``, rather than a table."""
    return "," in text and not is_query(text) and not Path(text).exists()
