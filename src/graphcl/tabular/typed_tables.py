"""Opens the tables of a typed graph: a table of nodes for each type, and lists of edges."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from graphcl.errors import GraphError, TableError
from graphcl.tabular import guessing
from graphcl.tabular import matrix as node_matrix
from graphcl.tabular.build import table_name
from graphcl.tabular.duck import Duck, is_query
from graphcl.tabular.guessing import Held, Listed
from graphcl.tabular.options import Fate, TableOptions, TableReport, counted
from graphcl.tabular.problems import Problem, together
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.tables import Tables, open_tables
from graphcl.tabular.type_ids import TypeIds
from graphcl.tabular.typed_edges import EdgeTable, find_ends
from graphcl.tabular.typed_options import (
    OF_BOTH,
    OF_EDGES,
    by_name,
    divide,
    of_relation,
    of_type,
    short_name,
)

T = TypeVar("T")
MATRIX = "matrix_ids"  # a session's table of the ids of a matrix
NODE, TO = "node", "to"  # names where there is one type, and one directed relation


@dataclass
class TypedReport:
    """What was found in the tables of a typed graph.

    Attributes:
        first: lines that are shown before all others: warnings, and what was guessed.
        notes: lines for the user about relations and the whole graph.
        types: the report on each type's table.
        relations: what became of further columns of the lists of edges, by relation.
    """

    first: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    types: dict[str, TableReport] = field(default_factory=dict)
    relations: dict[str, list[Fate]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON has it."""
        kinds = {name: report.to_json() for name, report in self.types.items()}
        lists = {name: [one._asdict() for one in fates] for name, fates in self.relations.items()}
        said = {"first": self.first, "notes": self.notes}
        return {**said, "types": kinds, "relations": lists}


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
    ids, ends = _guess(lists, given, options, found)
    line = guessing.first_line(ids.values(), ends.values())
    with ExitStack() as stack:
        if line:
            on_step(line)
        on_step("reading the nodes")
        for kind, own in found.options.items():
            problems = list[Problem]()
            enter = partial(_open_nodes, stack, own, ids.get(kind), problems)
            tables = _collecting(enter, kind, wrong)
            wrong += [
                TableError([f"{kind}: {one.message}"], of_type(kind, one.fix)) for one in problems
            ]
            if tables is not None:
                found.nodes[kind] = tables
                found.ids[kind] = TypeIds(kind, tables.node_ids(), tables.num_nodes)
                found.report.types[kind] = tables.report
                tables.rest()
        if len(found.ids) < len(given):
            _refuse(wrong)  # without the ids of all types nothing can be said of edges
        on_step("reading the edges")
        found.lists = _open_edges(stack, lists, options, found.ids, wrong, ends)
        _refuse(wrong)
        joined = {table.text: table.guessed_types for table in found.lists}
        line = guessing.first_line(ids.values(), ends.values(), joined)
        found.report.first = [line] if line else []
        _add_missing(found)
        yield found


def _guess(
    lists: Mapping[Any, Any], given: Mapping[str, Any], options: TableOptions, found: TypedTables
) -> tuple[dict[str, Held], dict[str, Listed]]:
    """Sets the options of each type; returns which columns hold ids, and which are ends."""
    texts = {_text(key): key for key in lists}
    short = [short_name(text) for text in texts]
    ends: dict[str, Listed] = {}
    with ExitStack() as stack:
        nodes = {kind: _look(stack, table, "nodes", options) for kind, table in given.items()}
        edges: dict[str, tuple[Duck, Source]] = {}
        for text, key in texts.items():
            try:
                edges[text] = _look(stack, lists[key], "edges", options)
            except GraphError:  # said with all else that is wrong, unless an option is in doubt
                if any(getattr(options, name) for name in OF_BOTH):
                    raise
        columns = {
            kind: None if source.relation == MATRIX else list(source.columns)
            for kind, (_, source) in nodes.items()
        }
        listed = {short_name(text): list(source.columns) for text, (_, source) in edges.items()}
        divided = divide(options, columns, listed)
        found.options = {kind: replace(divided[kind], nodes=table) for kind, table in given.items()}
        for text, (duck, source) in edges.items():
            own = of_relation(options, short_name(text), short)
            with suppress(GraphError):
                relation, both, how = find_ends(source, own, given)
                ends[text] = guessing.list_of_edges(
                    duck, source, text, (both, how), excluded=(relation, own.weight)
                )
        ids = {
            kind: guessing.node_table(duck, source, kind, found.options[kind], [*ends.values()])
            for kind, (duck, source) in nodes.items()
        }
    guessing.choose([*ids.values()], [*ends.values()])
    return {kind: one for kind, one in ids.items() if columns[kind] is not None}, ends


def _look(stack: ExitStack, table: Any, role: str, options: TableOptions) -> tuple[Duck, Source]:
    """Opens a table in a session of its own; of a matrix, the table of its ids."""
    duck = stack.enter_context(Duck())
    is_text = isinstance(table, str)
    matrix = None
    if role == "nodes" and not (is_text and is_query(table)):
        matrix = node_matrix.read(table, None)
    if matrix is not None:
        duck.load(MATRIX, matrix.id_table())
        return duck, Source(table if is_text else role, MATRIX, duck.columns(MATRIX))
    source = open_source(duck, table, role=role, header=options.header, names=options.names)
    return duck, (source.nodes or source) if role == "nodes" else source


def _text(key: Any) -> str:
    """Returns the name of a relation, ``writes`` or ``author:writes:paper``."""
    return key if isinstance(key, str) else ":".join(map(str, key))


def _open_nodes(
    stack: ExitStack, options: TableOptions, held: Held | None, problems: list[Problem]
) -> Tables:
    import pyarrow

    none = pyarrow.array([], pyarrow.int64())
    edges = pyarrow.table({"source": none, "target": none})  # of the nodes alone
    identity = None if held is None else (held.column, held.how)
    opened = open_tables(edges, options, identity=identity, problems=problems)
    tables = stack.enter_context(opened)
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
        raise GraphError("a typed graph needs edges: pass edges={'NAME': FILE}")
    return lists


def _node_tables(lists: Mapping[Any, Any], options: TableOptions) -> dict[str, Any]:
    """Returns the node table of each type; one table is that of the type ``node``."""
    nodes = options.nodes
    if isinstance(nodes, Mapping) and not hasattr(nodes, "columns"):
        if not nodes:
            raise GraphError("a typed graph needs nodes: pass nodes={'TYPE': FILE}")
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
        problems = [message for one in wrong for message in one.problems]
        raise TableError(problems, together([one.fix for one in wrong]))


def _open_edges(
    stack: ExitStack,
    lists: Mapping[Any, Any],
    options: TableOptions,
    ids: Mapping[str, TypeIds],
    wrong: list[TableError],
    ends: Mapping[str, Listed],
) -> list[EdgeTable]:
    """Opens all lists of edges, each in a session that ends with the stack."""
    named = {_text(key): key for key in lists}
    short = {text: short_name(text) for text in named}
    tables: list[EdgeTable] = []
    for text, key in named.items():
        own = of_relation(options, short[text], short.values())
        duck = stack.enter_context(Duck())
        make = partial(EdgeTable, duck, text, lists[key], own, ids, ends.get(text))
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
        known = [table.name for table in tables]
        for relation, column in by_name(name, getattr(options, name), known):
            meant = [one for one in tables if relation in ("", one.name)]
            if any(column_of(table, name) for table in meant):
                continue
            listed = ", ".join(dict.fromkeys(c for one in meant for c in one.source.columns))
            option = "--" + name.replace("_", "-")
            what = f"the list of {relation} has no" if relation else "no list of edges has the"
            raise GraphError(f"{option}: {what} column {column!r}; got {listed}")
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
