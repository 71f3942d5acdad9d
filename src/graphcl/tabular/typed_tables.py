"""Opens the tables of a typed graph: a table of nodes for each type, and lists of edges."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from graphcl.errors import GraphError, TableError
from graphcl.tabular import matrix as node_matrix
from graphcl.tabular.build import table_name
from graphcl.tabular.duck import Duck, is_query
from graphcl.tabular.options import Fate, TableOptions, TableReport, counted
from graphcl.tabular.sources import open_source
from graphcl.tabular.tables import Tables, open_tables
from graphcl.tabular.type_ids import TypeIds
from graphcl.tabular.typed_edges import EdgeTable, find_ends
from graphcl.tabular.typed_options import (
    OF_BOTH,
    OF_EDGES,
    divide,
    of_relation,
    of_type,
    short_name,
)

T = TypeVar("T")
NODE, TO = "node", "to"  # names where there is one type, and one directed relation


@dataclass
class TypedReport:
    """What was found in the tables of a typed graph.

    Attributes:
        notes: lines for the user about relations and the whole graph.
        types: the report on each type's table.
        relations: what became of further columns of the lists of edges, by relation.
    """

    notes: list[str] = field(default_factory=list)
    types: dict[str, TableReport] = field(default_factory=dict)
    relations: dict[str, list[Fate]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON has it."""
        kinds = {name: report.to_json() for name, report in self.types.items()}
        lists = {name: [one._asdict() for one in fates] for name, fates in self.relations.items()}
        return {"notes": self.notes, "types": kinds, "relations": lists}


@dataclass
class TypedTables:
    """The tables of a typed graph, checked and with numbers for all nodes.

    Attributes:
        name: of the graph.
        nodes: the nodes of each type; `num_nodes` counts those that only edges name.
        options: of each type.
        ids: of each type.
        lists: the lists of edges.
        report: what has been found so far.
    """

    name: str
    nodes: dict[str, Tables] = field(default_factory=dict)
    options: dict[str, TableOptions] = field(default_factory=dict)
    ids: dict[str, TypeIds] = field(default_factory=dict)
    lists: list[EdgeTable] = field(default_factory=list)
    report: TypedReport = field(default_factory=TypedReport)

    def say_columns(self) -> None:
        """Adds what became of the columns of lists of edges to the report."""
        for table in self.lists:
            for found in table.relations:
                if found.features.fates:
                    self.report.relations[found.key] = found.features.fates


@contextmanager
def open_typed_tables(
    edges: Any, options: TableOptions, *, on_step: Callable[[str], None] = lambda _: None
) -> Iterator[TypedTables]:
    """Opens the tables of a typed graph; `on_step` gets the name of each step.

    Args:
        edges: a list of edges beside those of `options.edges`, or None.
        options: with typed `nodes` or `edges`, or the column `relation`, or `directed`.
        on_step: called before each step.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
    """
    _check(options)
    lists = _lists(edges, options)
    given = _node_tables(lists, options)
    wrong = list[TableError]()
    found = TypedTables(table_name(next(iter(lists.values()))))
    divided = divide(
        options,
        {kind: _columns(table, options) for kind, table in given.items()},
        _list_columns(lists, options),
    )
    found.options = {kind: replace(divided[kind], nodes=table) for kind, table in given.items()}
    with ExitStack() as stack:
        on_step("reading the nodes")
        for kind, own in found.options.items():
            enter = partial(_open_nodes, stack, own)
            tables = _collecting(enter, kind, wrong)
            if tables is not None:
                found.nodes[kind] = tables
                found.ids[kind] = TypeIds(kind, tables.node_ids(), tables.num_nodes)
                found.report.types[kind] = tables.report
                tables.rest()
        if len(found.ids) < len(given):
            _refuse(wrong)  # without the ids of all types nothing can be said of edges
        on_step("reading the edges")
        found.lists = _open_edges(stack, lists, options, found.ids, wrong)
        _refuse(wrong)
        _add_missing(found)
        yield found


def _open_nodes(stack: ExitStack, options: TableOptions) -> Tables:
    import pyarrow

    none = pyarrow.array([], pyarrow.int64())
    edges = pyarrow.table({"source": none, "target": none})  # of the nodes alone
    tables = stack.enter_context(open_tables(edges, options))
    notes = tables.report.notes
    tables.report.notes = [line for line in notes if not line.startswith("edges:")]
    return tables


def _check(options: TableOptions) -> None:
    if options.features != "columns":
        raise GraphError(
            "--features: a typed graph fills in types without features from its relations by "
            "itself; leave it out"
        )


def _lists(edges: Any, options: TableOptions) -> dict[Any, Any]:
    """Returns the lists of edges by the names of their relations."""
    lists: dict[Any, Any] = {}
    listed = [one for one in (options.edges or {}).values() if isinstance(one, str)]
    if edges is not None and not (isinstance(edges, str) and edges in listed):
        lists[TO if options.directed else table_name(edges)] = edges
    for name, one in (options.edges or {}).items():
        lists[name] = str(one) if isinstance(one, Path) else one
    for name in [one for one in lists if isinstance(one, str) and ":" not in one]:
        # Said again with the types of its ends, as a message advises.
        if any(isinstance(one, str) and one.split(":")[1:2] == [name] for one in lists):
            del lists[name]
    if not lists:
        raise GraphError("a typed graph needs edges: --edges NAME=FILE, or a list of edges")
    return lists


def _node_tables(lists: Mapping[Any, Any], options: TableOptions) -> dict[str, Any]:
    """Returns the node table of each type; one table is that of the type ``node``."""
    nodes = options.nodes
    if isinstance(nodes, Mapping) and not hasattr(nodes, "columns"):
        if not nodes:
            raise GraphError("a typed graph needs nodes: --nodes TYPE=FILE")
        named = {str(kind): one for kind, one in nodes.items()}
        return {kind: str(one) if isinstance(one, Path) else one for kind, one in named.items()}
    if nodes is not None:
        return {NODE: nodes}
    if options.edges is not None:
        raise GraphError("--edges: its ends are nodes of which types? Pass --nodes TYPE=FILE")
    return {NODE: _ids_in(next(iter(lists.values())), options)}


def _ids_in(edges: Any, options: TableOptions) -> Any:
    """Returns a table of the ids that a list of edges names."""
    import pyarrow

    with Duck() as duck:
        source = open_source(duck, edges, role="edges", header=options.header, names=options.names)
        _, (first, second), _ = find_ends(source, options, ())
    options = TableOptions(
        source_column=first, target_column=second, header=options.header, features="structural"
    )
    with open_tables(edges, options) as tables:
        ids = tables.node_ids()
        keys = pyarrow.array(np.arange(tables.num_nodes)) if ids is None else ids
        return pyarrow.table({"id": keys})


def _columns(table: Any, options: TableOptions) -> list[str] | None:
    """Returns the names of a node table's columns; None if it is a matrix."""
    is_text = isinstance(table, str)
    if not (is_text and is_query(table)) and node_matrix.read(table, None) is not None:
        return None
    with Duck() as duck:
        source = open_source(duck, table, role="nodes", header=options.header, names=options.names)
        return list((source.nodes or source).columns)


def _list_columns(lists: Mapping[Any, Any], options: TableOptions) -> dict[str, Sequence[str]]:
    """Returns the columns of each list of edges, if an option may name one of them."""
    found: dict[str, Sequence[str]] = {}
    if any(getattr(options, name) for name in OF_BOTH):
        for key, given in lists.items():
            text = key if isinstance(key, str) else ":".join(map(str, key))
            with Duck() as duck:
                source = open_source(
                    duck, given, role="edges", header=options.header, names=options.names
                )
                found[short_name(text)] = list(source.columns)
    return found


def _collecting(read: Callable[[], T], where: str, wrong: list[TableError]) -> T | None:
    """Returns what `read` returns; what is wrong with a table is added to `wrong`."""
    try:
        return read()
    except TableError as error:
        said = [f"{where}: {message}" for message in error.problems]
        wrong.append(TableError(said, of_type(where, error.fix)))
    except GraphError as error:
        wrong.append(TableError([f"{where}: {error}"]))
    return None


def _refuse(wrong: Sequence[TableError]) -> None:
    """Raises one error for all that is wrong, if anything is."""
    if wrong:
        settled = all(one.fix for one in wrong)  # or there is nothing to paste
        words = [one.fix for one in wrong] if settled else []
        unique = dict.fromkeys(_pairs([word for some in words for word in some]))
        fix = tuple(word for pair in unique for word in pair)
        raise TableError([message for one in wrong for message in one.problems], fix)


def _pairs(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns options, each with its value if it has one."""
    found: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--"):
            found.append((word,))
        else:
            found[-1] = (*found[-1], word)
    return found


def _open_edges(
    stack: ExitStack,
    lists: Mapping[Any, Any],
    options: TableOptions,
    ids: Mapping[str, TypeIds],
    wrong: list[TableError],
) -> list[EdgeTable]:
    """Opens all lists of edges, each in a session that ends with the stack."""
    named = {key if isinstance(key, str) else ":".join(map(str, key)): key for key in lists}
    short = {text: short_name(text) for text in named}
    tables: list[EdgeTable] = []
    for text, key in named.items():
        own = of_relation(options, short[text], short.values())
        duck = stack.enter_context(Duck())
        make = partial(EdgeTable, duck, text, lists[key], own, ids)
        table = _collecting(make, f"edges {short[text]}", wrong)
        duck.rest()
        if table is not None:
            tables.append(table)
            wrong += [
                TableError(
                    [f"edges {short[text]}: {one.message}"],
                    one.fix if own.relation is not None else of_type(short[text], one.fix),
                )
                for one in table.problems
            ]
    if not wrong:
        _check_used(options, tables)
    return tables


def _check_used(options: TableOptions, tables: Sequence[EdgeTable]) -> None:
    """Refuses a column that no list of edges has, and relations that are given twice."""
    for name in OF_EDGES:
        column = getattr(options, name)
        if column is not None and not any(column_of(table, name) for table in tables):
            listed = ", ".join(dict.fromkeys(c for one in tables for c in one.source.columns))
            option = "--" + name.replace("_", "-")
            raise GraphError(f"{option}: no list of edges has the column {column!r}; got {listed}")
    keys = [(*one.types, one.name) for table in tables for one in table.relations]
    for key in keys:
        if keys.count(key) > 1:
            raise GraphError(f"--edges: {key[0]}:{key[2]}:{key[1]} is given twice")


def column_of(table: EdgeTable, option: str) -> bool:
    """Returns whether a list of edges has the column that an option names."""
    given = getattr(table.options, option)
    known = {name.strip().lower() for name in table.source.columns}
    return given is not None and given.strip().lower() in known


def _add_missing(found: TypedTables) -> None:
    """Adds nodes that only edges name, with features of zero and without a label."""
    added: dict[str, dict[str, None]] = {}
    for table in found.lists:
        for one in table.relations:
            for kind, unknown in zip(one.types, one.unknown, strict=True):
                added.setdefault(kind, {}).update(dict.fromkeys(unknown))
    for kind, names in added.items():
        count = len(names)
        if not count:
            continue
        found.ids[kind].add(sorted(names))
        found.nodes[kind].num_nodes += count
        found.report.types[kind].added_nodes = count
        found.report.notes.append(
            f"nodes {kind}: {counted(count, 'node')} that only edges name: added, with features of "
            "zero and without a label"
        )
