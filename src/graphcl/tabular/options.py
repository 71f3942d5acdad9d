"""The options for reading tables, and how they are divided among types of nodes and relations.

``author=name`` gives the column `name` to the type `author`, and ``writes=share`` the column
`share` to the relation `writes`. A column without such a name goes to every table that has it; a
column of labels must be of one type then, because nothing says which is meant. Files beside a node
table (``--tags``, ``--vectors``) always need their type.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from graphcl.errors import (
    GraphError,
    ParameterError,
    check_keys,
    check_known,
    demand,
    option,
    require,
    suggestion,
)
from graphcl.errors import counted as counted
from graphcl.settings import LABEL_KINDS
from graphcl.tabular.preparation import Preparation

MISSING = ("auto", "refuse", "zero", "mean")
COLUMNS = ("label", "one_hot", "text", "date", "ignore")  # options that name several columns
TIMES = ("time", "label_time")  # columns of times, of types and relations
ONE_EACH = ("id_column", "split", "source_column", "target_column", "weight")
FEATURES = ("columns", "structural", "both")
DUPLICATES = ("first", "last", "refuse")
UNKNOWN_EDGES = ("add", "drop", "refuse")
CHOICES = {
    "missing": MISSING,
    "label_kind": LABEL_KINDS,
    "features": FEATURES,
    "duplicates": DUPLICATES,
    "unknown_edges": UNKNOWN_EDGES,
}
_PREPARED = ("preparation", "preparations", "edge_preparations")  # of a training, no options
_DATE = re.compile(r"(?=.*%)([^%]|%-?[aAbBdfgHIjmMnpSyYzZ%]){1,80}")  # as DuckDB reads it
FILES = ("nodes", "edges", "tags", "vectors", "vector_ids")  # options that name files
# How options are divided among the types and relations of a typed graph:
SINGLE = ("id_column", "split")  # one column for each type
BESIDE = ("tags", "tag_columns", "vectors", "vector_ids", "node_ids")
LABELS = ("label_separator", "label_kind")  # of the type that has labels
COMMON = ("missing", "strict", "header", "inductive", "decimal", "date_format", "duplicates")
CHOSEN = ("duplicates", "unknown_edges")  # for particular tables
OF_EDGES = ("source_column", "target_column", "weight")
OF_BOTH = ("one_hot", "text", "date", "ignore")  # columns of node tables and of lists of edges


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
            feature. In the same forms as `nodes`.
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
            Columns of zeros and ones are a label each; of others, each value is a label. Or the
            column of a number to predict, such as a price.
        label_kind: whether `label` has ``classes`` or a ``number``. ``auto`` takes numbers with
            fractions for a number, and whole ones if more than 20 differ, and more than 5 % of all.
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
        time: columns that say when rows came, of nodes and of edges: dates, or numbers such as
            years. Of a plain graph, ``node=joined`` and ``edge=day`` say of which.
        label_time: columns of node tables that say when labels came; None: with their nodes.
        until: a date, a time or a number: rows and labels that are later are left out, before
            anything else is looked at. None: the latest time.
        age: of edges with times, log(1 + days until then) is a feature; see
            `graphcl.tabular.times`.
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
    mapping from types.
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
    label_kind: str = "auto"
    split: Any = None
    one_hot: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    decimal: str | None = None
    date_format: str | None = None
    ignore: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    label_time: tuple[str, ...] = ()
    until: Any = None
    age: bool = True
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
        for name in FILES:
            object.__setattr__(self, name, _as_texts(getattr(self, name)))
        for name in (*COLUMNS, *TIMES):  # one column may be given as a text
            value = getattr(self, name)
            if isinstance(value, Mapping):  # of the types of a typed graph
                value = _of_types(value)
            listed = () if value is None else (value,) if isinstance(value, str) else tuple(value)
            object.__setattr__(self, name, listed)
        self._set_tags()
        for name, known in CHOICES.items():
            value = getattr(self, name)
            require(value in known, "tables", option(name), " or ".join(known), value)
        mark, form, separator = self.decimal, self.date_format, self.label_separator
        require(mark in (None, ".", ","), "tables", option("decimal"), ". or ,", mark)
        require(
            form is None or _DATE.fullmatch(form) is not None,
            "tables",
            option("date_format"),
            "such as %d/%m/%Y",
            form,
        )
        require(separator != "", "tables", option("label_separator"), "not empty", separator)
        object.__setattr__(self, "until", None if self.until is None else str(self.until).strip())

    def _set_tags(self) -> None:
        """Reads column names that are given as one text."""
        columns: Any = self.tag_columns
        if self.is_typed and isinstance(columns, Mapping):
            return
        listed = (columns,) if isinstance(columns, str) else tuple(columns or ())
        if not self.is_typed:
            listed = listed[0].split(",") if len(listed) == 1 else listed  # as of a command line
            listed = tuple(name.strip() for name in listed)
            require(
                not listed or (len(listed) in (2, 3) and all(listed)),
                "tables",
                option("tag_columns"),
                "the columns of ids and of names, and perhaps of values: page,keyword",
                ",".join(listed),
            )
        object.__setattr__(self, "tag_columns", listed)

    @property
    def is_typed(self) -> bool:
        """Whether the tables are those of a typed graph."""
        named = self.edges is not None or self.relation is not None or self.directed
        return named or holds_tables(self.nodes)

    def require_one_type(self) -> None:
        """Refuses columns that are given for several types or relations, where there is one.

        Raises:
            GraphError: an option has several columns.
        """
        for name in ONE_EACH:
            value = getattr(self, name)
            several = value if isinstance(value, Mapping | tuple | list) else ()
            demand(
                not several,
                f"{option(name)}: {', '.join(map(str, several))}: a graph of one type has one "
                f"column; give {option(name)} once",
            )

    @classmethod
    def named(cls, owner: str, given: Mapping[str, Any]) -> "TableOptions":
        """Returns options that a caller gave as keywords.

        Raises:
            ParameterError: there is no such option.
        """
        check_keys(given, [one.name for one in fields(cls)], where=owner, error=ParameterError)
        return cls(**given)

    def given(self) -> dict[str, Any]:
        """Returns the options that differ from the defaults; a preparation is not an option."""
        kept = [one for one in fields(self) if one.name not in _PREPARED]
        pairs = ((one.name, getattr(self, one.name), one.default) for one in kept)
        return {name: value for name, value, default in pairs if not _same(value, default)}

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
            demand(
                isinstance(given, dict) and not any(name in given for name in _PREPARED),
                "not options",
                ValueError,
            )
            lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
            return cls(**given | lists, preparation=preparation, **of_types)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def after(self, trained: "TableOptions") -> "TableOptions":
        """Returns these options, completed from the options of the training tables.

        An option that is not given is taken from `trained`, except those in `own`, which describe
        particular tables.
        """
        own = {*FILES, "node_ids", "label", *LABELS, "split", "ignore", *CHOSEN, "strict"}
        kept = {name: value for name, value in trained.given().items() if name not in own}
        merged = TableOptions(**kept | self.given())
        return replace(merged, **{name: getattr(trained, name) for name in _PREPARED})

    @property
    def names(self) -> frozenset[str]:
        """All column names that are given, in lower case."""
        found = []
        for one in (*ONE_EACH, *COLUMNS, *TIMES, "relation", "tag_columns"):
            value = getattr(self, one)
            several = value.values() if isinstance(value, Mapping) else value or ()
            listed = (several,) if isinstance(several, str) else several
            found += [part for text in listed for part in (text, text.partition("=")[2])]
        return frozenset(name.lower() for name in found if name)


def _as_texts(given: Any) -> Any:
    """Returns files, and tables by name, with paths and names as texts."""
    if isinstance(given, Mapping) and not hasattr(given, "columns"):
        names = (":".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in given)
        return dict(zip(names, map(_as_texts, given.values()), strict=True))
    return str(given) if isinstance(given, Path) else given


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


def divide(
    options: TableOptions,
    columns: Mapping[str, Sequence[str] | None],
    lists: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, TableOptions]:
    """Returns the options of each type; a plain graph's are those of its one type.

    Args:
        options: those of the whole graph.
        columns: the columns of each type's table; None if it is a matrix.
        lists: the columns of the lists of edges, by relation.

    Raises:
        GraphError: a column is in no table, or a label is in several.
    """
    if not options.is_typed:
        return dict.fromkeys(columns, options)
    found: dict[str, dict[str, Any]] = {kind: {} for kind in columns}
    for name in (*COLUMNS, *SINGLE):
        of_edges = (lists or {}) if name in OF_BOTH else {}
        for kind, column in _placed(name, getattr(options, name), columns, of_edges):
            if name in SINGLE:
                demand(name not in found[kind], f"{option(name)}: type {kind!r} has two")
                found[kind][name] = column
            else:
                found[kind][name] = (*found[kind].get(name, ()), column)
    for name in BESIDE:
        for kind, value in of_one_type(name, getattr(options, name), columns):
            found[kind][name] = value
    common: dict[str, Any] = {name: getattr(options, name) for name in COMMON}
    divided = {}
    prepared = options.preparations or {}
    for kind, own in found.items():
        if "label" in own:
            own |= {name: getattr(options, name) for name in LABELS}
        divided[kind] = TableOptions(**common, **own, preparation=prepared.get(kind))
    demand(
        options.label_separator is None or any(one.label for one in divided.values()),
        f"{option('label_separator')}: there are no labels; pass {option('label')}",
    )
    return divided


def _placed(
    name: str,
    given: Any,
    columns: Mapping[str, Sequence[str] | None],
    lists: Mapping[str, Sequence[str]],
) -> list[tuple[str, str]]:
    """Returns the types and columns that an option names; those of lists of edges are checked."""
    found = []
    for kind, text in by_name(name, given, (*columns, *lists)):
        column = text
        text = f"{kind}={column}" if kind else column
        if kind in columns and (kind not in lists or having(columns[kind], [column])):
            found.append((kind, column))
            continue
        if having(lists.get(kind), [column]):
            continue
        of = [one for one, names in columns.items() if having(names, [text])]
        if not of and not any(having(names, [text]) for names in lists.values()):
            raise GraphError(f"{option(name)}: {_nowhere(text, columns, lists)}")
        if name == "label" and len(of) > 1:
            which = f"say of which: {option('label', text, of=of[0])}"
            raise GraphError(
                f"{option('label')}: {text!r} is a column of {' and '.join(of)}; {which}"
            )
        found += [(one, text) for one in of]
    return found


def by_name(keyword: str, given: Any, known: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the values of an option, each with its type or relation; empty where none is said.

    Every option that is of a type or a relation comes through here: as ``author=name`` of a command
    line, as several such texts, as a mapping, or as one value for all.

    Args:
        keyword: its name in `TableOptions`.
        given: its value.
        known: types, or the short names of relations.

    Raises:
        GraphError: one is given twice, or a mapping names an unknown one.
    """
    names, pairs = list(known), list[tuple[str, Any]]()
    if given is None:
        return []
    if isinstance(given, Mapping):
        for key, value in given.items():
            name = short_name(key if isinstance(key, str) else ":".join(map(str, key)))
            kind = "relation" if keyword in OF_EDGES else "type"
            what, listed = f"{option(keyword)}: no {kind}", f"the {kind}s:"
            check_known(name, names, what=what, listed=listed, error=GraphError)
            pairs.append((name, value))
    elif isinstance(given, str) or _are_texts(given):
        for text in (given,) if isinstance(given, str) else given:
            name, equals, rest = text.partition("=")
            said = equals and short_name(name) in names
            pairs.append((short_name(name), rest) if said else ("", text))
    else:
        pairs.append(("", given))
    said = [name for name, _ in pairs if name]
    for name in said if keyword not in COLUMNS else ():
        demand(said.count(name) == 1, f"{option(keyword)}: {name!r} is given twice")
    return pairs


def _are_texts(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)


def _nowhere(
    text: str, types: Mapping[str, Sequence[str] | None], lists: Mapping[str, Sequence[str]]
) -> str:
    """Says that no type or relation has a column, or that there is no such one."""
    columns = {**types, **lists}
    kind, equals, column = text.partition("=")
    if equals and any(having(names, [column]) for names in columns.values()):
        near = suggestion(kind, columns)
        what = "types and relations" if lists else "types"
        return f"no type {kind!r}; the {what}: {', '.join(columns)}{near}"
    known = {name for names in columns.values() for name in names or ()}
    near = suggestion(text, known)
    return f"no column {text!r} in the tables of {', '.join(columns)}{near}"


def having(columns: Iterable[str] | None, names: Iterable[str]) -> list[str]:
    """Returns the columns with these names, in their order, as far as there are any.

    Upper and lower case are the same, and spaces around a name do not count.
    """
    known = {one.strip().lower(): one for one in columns or ()}
    wanted = [one.strip().lower() for one in names]
    return [known[one] for one in wanted if one in known]


def of_one_type(name: str, given: Any, kinds: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the types that an option has a file or an array for."""
    known = list(kinds)
    pairs = by_name(name, given, known)
    if all(kind for kind, _ in pairs):
        return pairs
    if name == "tag_columns" and _are_texts(given):  # names of columns, one by one
        given = ",".join(given)
    shown = given if isinstance(given, str) else "…"
    said = option(name, shown, of=known[0], written=shown)
    demand(
        len(known) == 1 and not any(kind for kind, _ in pairs),
        f"{option(name)}: say of which type: {said}",
    )
    return [(known[0], given)]


def of_relation(options: TableOptions, name: str, known: Iterable[str]) -> TableOptions:
    """Returns the options of one relation's list of edges: ``--weight buys=amount``.

    A column that is given to no relation is left in: the list may have it or not.
    """
    if not options.is_typed:
        return options
    changed: dict[str, Any] = {}
    known = list(known)
    for keyword in (*OF_BOTH, *OF_EDGES):
        pairs = by_name(keyword, getattr(options, keyword), known)
        own = [column for relation, column in pairs if relation == name]
        common = [column for relation, column in pairs if not relation]
        shown = option(keyword, next(iter(common), None), of=name)
        demand(
            keyword not in OF_EDGES or len(common) < 2,
            f"{option(keyword)}: say of which relation each is: {shown}",
        )
        found = (*own, *common)
        changed[keyword] = found if keyword in OF_BOTH else next(iter(found), None)
    return replace(options, **changed)


def short_name(relation: str) -> str:
    """Returns ``writes`` for ``author:writes:paper`` and for ``writes``."""
    return relation.split(":")[1] if relation.count(":") == 2 else relation


def split_relation(name: str, types: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Returns the types that ``author:writes:paper`` gives, if any, and the relation's name."""
    parts = tuple(name.split(":"))
    if len(parts) == 1:
        return (), parts[0]
    start = f"{option('edges', name, written=name)}:"
    demand(
        len(parts) == 3 and all(parts),
        f"{start} a relation is named NAME, or SOURCE:NAME:TARGET with the types",
    )
    for end in parts[::2]:
        check_known(end, types, what=f"{start} no type", listed="the types:", error=GraphError)
    return (parts[0], parts[2]), parts[1]


def of_type(kind: str, fix: tuple[str, str] | tuple[()]) -> tuple[str, str] | tuple[()]:
    """Returns what settles a problem with one type's table, as it settles it for all."""
    return (fix[0], f"{kind}={fix[1]}") if fix and fix[0] in (*COLUMNS, *SINGLE) else fix
