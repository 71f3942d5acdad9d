"""Opens the tables of a graph: tables of nodes and lists of edges, checked and numbered.

DuckDB reads, numbers, sorts and merges in bounded memory. All tables share one session, in which
each has a branch of its own. A plain graph has one table of nodes, of the type "", and one list of
edges. The report lists everything that was guessed, merged, left out or filled in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, option
from graphcl.tabular import columns as table_columns
from graphcl.tabular.columns import Held, IdColumn
from graphcl.tabular.duck import Duck, is_query, literal, quoted
from graphcl.tabular.edges import EdgeList
from graphcl.tabular.kinds import DAY
from graphcl.tabular.nodes import NodeSource, NumberedNodes
from graphcl.tabular.options import (
    OF_BOTH,
    OF_EDGES,
    TableOptions,
    by_name,
    divide,
    of_relation,
    of_type,
    short_name,
)
from graphcl.tabular.report import Problem, TableReport, refuse, said_of, unknown_advice
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.times import TIME, Times

NODE, EDGE, TO = "node", "edge", "to"  # names where there is one type, and one relation


@contextmanager
def open_tables(
    edges: Any, options: TableOptions, *, on_step: Callable[[str], None] = lambda _: None
) -> Iterator["Tables"]:
    """Opens tables, checks them and numbers the nodes; `on_step` gets the name of each step.

    It also gets what was guessed, as soon as that is known.

    Args:
        edges: a list of edges; of a typed graph, one beside those of `options.edges`, or None.
        options: how to read the tables.
        on_step: called before each step.

    Raises:
        GraphError: a table is wrong; the message names the table, row and column, the value, and
            what to do, for all that is wrong.
    """
    with Duck() as duck:
        yield Tables(duck, edges, options, on_step)


class Tables:
    """Tables that have been checked and numbered, and can fill arrays.

    Attributes:
        name: of the graph.
        typed: whether it has types.
        nodes: the nodes of each type; of a plain graph, those of the type "".
        lists: the lists of edges.
        times: when rows came, and until when they count.
        report: what has been found so far.
    """

    def __init__(
        self, duck: Duck, edges: Any, options: TableOptions, on_step: Callable[[str], None]
    ) -> None:
        self._duck, self._options, self.typed = duck, options, options.is_typed
        self.report = TableReport()
        self.nodes: dict[str, NumberedNodes] = {}
        self.lists: list[EdgeList] = []
        self._wrong: list[Problem] = []
        lists, given = _lists(edges, options), _node_tables(options)
        self.name = table_name(next(iter(lists.values())))
        self._open(lists, given)
        ids = self._guess()
        if line := table_columns.first_line(ids.values(), self.lists):
            self._say_first(line, on_step)
        on_step("reading the edges")
        self._each_list(lambda one: one.load(self.report))
        self._say_lists()
        on_step("reading the nodes")
        self._number(ids)
        on_step("numbering the nodes")
        self._each_list(lambda one: one.find_relations(self.nodes))
        self._say_lists()
        self._join_unknown()
        self._refuse()
        if self.typed:
            self._check_used()
            joined = [
                f"{found.name} joins {' → '.join(found.types)}"
                for one in self.lists
                for found in one.relations
                if set(found.how) != {"given"} and found.types
            ]
            if joined:
                said = option("edges", "FILE", of="SOURCE:NAME:TARGET")
                self._say_first(f"guessed: {', '.join(joined)}; otherwise: {said}", on_step)
            self._add_missing()

    def met(self, kind: str) -> dict[tuple[str, bool], npt.NDArray[np.int64]]:
        """Returns whom nodes of a type were linked to when they came; to be called at the end.

        Returns:
            By relation, ``source:name:target``, and by whether the nodes are targets: rows of nodes
            and of those on the other ends, ``[2, n]``, sorted. Where times are dates, a node came
            with all that came on its day; without times, with all its edges.
        """
        nodes, found = self.nodes[kind if self.typed else ""], {}
        came = (
            quoted(TIME)
            if not self.times.dates
            else f"floor({quoted(TIME)} / {DAY}) * {DAY} + {DAY - 1e-6}"
        )
        for table in self.lists:
            for one in table.relations:
                table.create_pairs(one)
                timed = table.source.time and nodes.source and nodes.source.time
                joined = f" JOIN {nodes.duck.schema}.node_rows n ON n.rowid = {{0}} AND m <= {came}"
                for place, ends in enumerate(("u, v", "v, u")):
                    if one.types[place] in (kind, ""):
                        join = joined.format(ends[0]) if timed else ""
                        query = f"SELECT DISTINCT {ends} FROM pairs{join} ORDER BY ALL"
                        key = one.key if self.typed else f"{NODE}:{EDGE}:{NODE}"
                        found[key, place == 1] = np.stack(table.duck.arrays(query)).astype(np.int64)
        return found

    def _say_first(self, line: str, on_step: Callable[[str], None]) -> None:
        """Says at once what was guessed, as what comes next may take long."""
        on_step(line)
        self.report.first.append(line)

    @property
    def plain(self) -> NumberedNodes:
        """The nodes of a plain graph."""
        return self.nodes[""]

    # Opening

    def _open(self, lists: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Opens all tables, and divides the options among them."""
        options, opened = self._options, dict[str, tuple[Duck, Source]]()
        for number, (text, table) in enumerate(lists.items()):
            branch = self._duck.branch(f"edges_{number}")
            # A failure is said with all else that is wrong, unless it decides whose an option is.
            at_once = any(getattr(options, name) for name in OF_BOTH)
            with self._collecting(f"edges {short_name(text)}", self._wrong, at_once=at_once):
                source = open_source(branch, table, role="edges", options=options)
                opened[text] = (branch, source)
        first = next((source for _, source in opened.values()), None)
        self._sources = {
            kind: NodeSource(self._duck.branch(f"nodes_{number}"), table, options, first)
            for number, (kind, table) in enumerate(given.items())
        }
        self._cut(opened)
        for one in self._sources.values():
            one.keep_rows()
        columns = {
            kind: None if one.matrix is not None else list(one.source.columns if one.source else ())
            for kind, one in self._sources.items()
        }
        listed = {short_name(text): list(source.columns) for text, (_, source) in opened.items()}
        divided = divide(options, columns, listed)
        self._divided = {
            kind: replace(divided[kind], nodes=table) if self.typed else options
            for kind, table in given.items()
        }
        short = [short_name(text) for text in lists]
        for text, (branch, source) in opened.items():
            own = of_relation(options, short_name(text), short)
            with self._collecting(f"edges {short_name(text)}", self._wrong):
                age = self.times.age(source)
                self.lists.append(EdgeList(branch, text, lists[text], source, own, given, age))

    def _cut(self, opened: dict[str, tuple[Duck, Source]]) -> None:
        """Leaves out the rows of all tables that came later than the options say."""
        lists = {("edges", short_name(text) or EDGE): (text, *own) for text, own in opened.items()}
        tables = {
            ("nodes", kind or NODE): (kind, one.duck, one.source)
            for kind, one in self._sources.items()
            if one.source is not None and one.matrix is None
        }
        both = {key: (duck, source) for key, (_, duck, source) in {**tables, **lists}.items()}
        self.times = Times(self._options, both)
        for key, (kind, _, _) in tables.items():
            self._sources[kind].source = self.times.cut(key)
        for key, (text, duck, _) in lists.items():
            opened[text] = (duck, self.times.cut(key))
        self.report.until = self.times.text or ""
        for (what, name), lines in self.times.notes.items():
            self.report.notes += said_of(f"{what} {name}:" if self.typed else f"{what}:", lines)

    @contextmanager
    def _collecting(
        self, where: str, wrong: list[Problem], *, at_once: bool = False
    ) -> Iterator[None]:
        """Keeps what is wrong with a table of a typed graph, to be said with all else."""
        try:
            yield
        except GraphError as error:
            if at_once or not self.typed:
                raise
            wrong.append(Problem(f"{where}: {error}"))

    def _each_list(self, work: Callable[[EdgeList], object]) -> None:
        """Does something with each list of edges; of a typed graph, one that fails is left out."""
        lists, self.lists = self.lists, []
        for one in lists:
            with self._collecting(f"edges {one.name}", self._wrong):
                work(one)
                self.lists.append(one)

    def _say_lists(self) -> None:
        """Reports on the list of a plain graph; those of others are reported with relations."""
        if not self.typed:
            self.report.notes += [line for one in self.lists for line in one.take_notes()]

    def _guess(self) -> dict[str, Held]:
        """Returns which columns hold ids, and sets which are ends."""
        judged = {
            kind: (one.duck, one.source)
            for kind, one in self._sources.items()
            if one.source is not None and (self.typed or one.matrix is None)
        }
        for one in self.lists if judged else ():
            table_columns.read_ends(one)
        ids = {
            kind: table_columns.node_table(duck, source, kind, self._divided[kind], self.lists)
            for kind, (duck, source) in judged.items()
        }
        table_columns.choose([*ids.values()], self.lists)
        return {kind: one for kind, one in ids.items() if not self._sources[kind].matrix}

    # Nodes

    def _number(self, ids: Mapping[str, Held]) -> None:
        """Numbers the nodes of all types.

        Of a typed graph their features, labels and splits are read at once, and what is wrong is
        said before what is wrong with edges.
        """
        wrong: list[Problem] = []
        for kind, opened in self._sources.items():
            report = TableReport() if self.typed else self.report
            held = ids.get(kind)
            identity = ("", "") if held is None else (held.column, held.how)
            if opened.source is None and not self.lists:
                self._refuse()  # the edges alone would name the nodes, and cannot be read
            with self._collecting(kind, wrong):
                nodes = NumberedNodes(opened, self._divided[kind], identity, report)
                nodes.number(self._ends() if opened.source is None else ())
                if self.typed:
                    nodes.complete()
                    self.report.types[kind] = report
                    wrong += [
                        Problem(f"{kind}: {one.message}", of_type(kind, one.fix))
                        for one in nodes.problems
                    ]
                self.nodes[kind] = nodes
        self._wrong = [*wrong, *self._wrong]
        if len(self.nodes) < len(self._sources):
            self._refuse()  # without the ids of all types nothing can be said of edges

    def _ends(self) -> list[tuple[IdColumn, str, int]]:
        """Returns the columns of ends, with the types of their ids and their rows."""
        return [
            (column, kind, one.rows)
            for one in self.lists
            for column, kind in zip(one.ids, one.kinds, strict=True)
        ]

    def _refuse(self) -> None:
        """Raises one error for all that is wrong, if anything is."""
        if not self.typed:
            refuse([*self.lists[0].problems, *self.plain.problems])
            return
        for one in self.lists:
            own = one.options.relation is None
            self._wrong += [
                Problem(
                    f"edges {one.name}: {problem.message}",
                    of_type(one.name, problem.fix) if own else problem.fix,
                )
                for problem in one.problems
            ]
        refuse(self._wrong)

    # Nodes that only edges name

    def _join_unknown(self) -> None:
        """Completes a plain graph, with its edges to nodes that are not in the node table."""
        if self.typed:
            return
        (one,), nodes, report = self.lists, self.plain, self.report
        report.counts.rows, report.counts.dangling = one.rows, one.dangling
        found = one.relations[0]
        edges, said = one.count_unknown(found) if one.dangling else (0, "")
        add = self._options.unknown_edges == "add"
        if edges and add:
            nodes.add(one.unknown(""))
            one.create_pairs(found)
            report.notes.append(f"edges: {said}: added, with features of zero and without a label")
        elif edges:
            value, row = one.duck.row("SELECT id, row FROM unknown ORDER BY row, id LIMIT 1")
            drop = self._options.unknown_edges == "drop"
            alike = _same_numbers(nodes, value)  # then nodes that edges add would be second ones
            nodes.problems.append(
                Problem(
                    f"{one.source.name}: {said}, first {value!r} in row {row + 1}; "
                    + ("no edge would be left" if drop else unknown_advice())
                    + (alike or _guessed_ids(nodes)),
                    () if drop or alike else ("unknown_edges", "add"),
                )
            )
        nodes.complete()

    def _add_missing(self) -> None:
        """Adds nodes that only edges name to the types of a typed graph."""
        for kind, nodes in self.nodes.items():
            named = [query for one in self.lists if (query := one.unknown(kind))]
            if named:
                count = counted(nodes.add(" UNION ".join(named)), "node")
                self.report.notes.append(
                    f"nodes {kind}: {count} that only edges name: added, with features of zero and "
                    "without a label"
                )

    def _check_used(self) -> None:
        """Refuses a column that no list of edges has, and relations that are given twice."""
        for name in OF_EDGES:
            known = [one.name for one in self.lists]
            for relation, column in by_name(name, getattr(self._options, name), known):
                meant = [one for one in self.lists if relation in ("", one.name)]
                own = [(one.source, getattr(one.options, name)) for one in meant]
                if any(table_columns.named(source, [given]) for source, given in own if given):
                    continue
                columns = ", ".join(dict.fromkeys(c for one in meant for c in one.source.columns))
                what = f"the list of {relation} has no" if relation else "no list of edges has the"
                raise GraphError(f"{option(name)}: {what} column {column!r}; got {columns}")
        keys = [found.key for one in self.lists for found in one.relations]
        for key in keys:
            if keys.count(key) > 1:
                raise GraphError(f"{option('edges')}: {key} is given twice")


def table_name(edges: Any) -> str:
    """Returns the name of a graph from these edges: the file's name without its suffixes."""
    if not isinstance(edges, str):
        return "graph"
    return "query" if is_query(edges) else Path(edges.split(":")[0]).name.split(".")[0] or "graph"


def _lists(edges: Any, options: TableOptions) -> dict[str, Any]:
    """Returns the lists of edges by the names of their relations; that of a plain graph is ""."""
    if not options.is_typed:
        options.require_one_type()
        return {"": edges}
    if options.features != "columns":
        raise GraphError(
            f"{option('features')}: a typed graph fills in types without features from its "
            "relations by itself; leave it out"
        )
    lists: dict[str, Any] = {}
    given = {
        name if isinstance(name, str) else ":".join(map(str, name)): one
        for name, one in (options.edges or {}).items()
    }
    if edges is not None and not (isinstance(edges, str) and edges in _texts(given.values())):
        lists[TO if options.directed else table_name(edges)] = edges
    lists |= {name: str(one) if isinstance(one, Path) else one for name, one in given.items()}
    for name in [one for one in lists if ":" not in one]:
        # Said again with the types of its ends, as a message advises.
        if any(one.split(":")[1:2] == [name] for one in lists):
            del lists[name]
    if not lists:
        raise GraphError(f"a typed graph needs edges: pass {option('edges', 'FILE', of='NAME')}")
    return lists


def _texts(tables: Iterable[Any]) -> list[str]:
    return [one for one in tables if isinstance(one, str)]


def _node_tables(options: TableOptions) -> dict[str, Any]:
    """Returns the node table of each type; one table is that of the type ``node``."""
    nodes = options.nodes
    if not options.is_typed:
        return {"": nodes}
    if isinstance(nodes, Mapping) and not hasattr(nodes, "columns"):
        if not nodes:
            raise GraphError(
                f"a typed graph needs nodes: pass {option('nodes', 'FILE', of='TYPE')}"
            )
        named = {str(kind): one for kind, one in nodes.items()}
        return {kind: str(one) if isinstance(one, Path) else one for kind, one in named.items()}
    if nodes is None and options.edges is not None:
        raise GraphError(
            f"{option('edges')}: its ends are nodes of which types? Pass "
            f"{option('nodes', 'FILE', of='TYPE')}"
        )
    return {NODE: nodes}


def _guessed_ids(nodes: NumberedNodes) -> str:
    """Returns what to say of the column of ids if it was guessed."""
    name, how = nodes.identity
    if how in ("given", "") or nodes.source is None:
        return ""
    others = ", ".join(repr(one) for one in list(nodes.source.columns)[:8] if one != name)
    more = f"; another column is given by {option('id_column')}: {others}" if others else ""
    return f"; the ids are those in {name!r} ({how}){more}"


def _same_numbers(nodes: NumberedNodes, unknown: str) -> str:
    """Returns a hint if the node table has the same number, written in another way."""
    written = nodes.duck.rows(
        "SELECT key::VARCHAR FROM nodes WHERE TRY_CAST(key::VARCHAR AS DOUBLE) = "
        f"TRY_CAST({literal(unknown)} AS DOUBLE) LIMIT 1"
    )
    if not written or nodes.source is None:
        return ""
    said = f"; its ids are written {written[0][0]!r} there and {unknown!r} here"
    digits, given = unknown.removeprefix("-"), nodes.options.nodes
    readable = isinstance(given, str) and not is_query(given)
    if not digits.isdecimal() or str(int(digits)) != digits or not readable:
        return said  # to read the node table in another way would not help
    column = quoted(nodes.identity[0])
    query = (
        f"SELECT * REPLACE (CAST(CAST({column} AS DOUBLE) AS BIGINT) AS {column}) FROM '{given}'"
    )
    plain = not set(query) & set("$`\\!")  # then a shell takes it between double quotes
    typed = '"' + query.replace('"', '\\"') + '"' if plain else ""
    return f"{said}: with whole numbers, read it as {option('nodes', query, written=typed)}"
