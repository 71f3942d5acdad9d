"""Opens the tables of a graph: tables of nodes and lists of edges, checked and numbered.

DuckDB reads, numbers, sorts and merges in bounded memory. All tables share one session, in which
each has a branch of its own. A plain graph has one table of nodes, of the type "", and one list of
edges. The report lists everything that was guessed, merged, left out or filled in.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import counted, demand, option
from graphcl.tabular import columns as table_columns
from graphcl.tabular.duck import Duck, is_query, quoted
from graphcl.tabular.edges import EdgeList
from graphcl.tabular.features import kept
from graphcl.tabular.kinds import DAY
from graphcl.tabular.nodes import NodeSource, NumberedNodes
from graphcl.tabular.options import (
    OF_EDGES,
    TableOptions,
    by_name,
    divide,
    having,
    of_one_type,
    of_relation,
    of_type,
    short_name,
)
from graphcl.tabular.report import Problem, TableReport, head_of, refuse, said_of
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
        lists, given = _lists(edges, options), _node_tables(options)
        self.name = table_name(next(iter(lists.values())))
        self._open(lists, given)
        ids = self._guess()
        if line := table_columns.first_line(ids.values(), self.lists):
            self._say_first(line, on_step)
        on_step("reading the edges")
        for one in self.lists:
            one.load(self.report)
        on_step("reading the nodes")
        self._number(ids)
        on_step("numbering the nodes")
        for one in self.lists:
            one.find_relations(self.nodes)
        self._add_missing()
        for nodes in self.nodes.values():
            nodes.complete()
        self._refuse()
        if self.typed:
            self._check_used()
            joined = [
                f"{found.name} joins {' → '.join(found.types)}"
                for one in self.lists
                for found in one.relations
                if set(found.how) != {"given"}
            ]
            if joined:
                said = option("edges", "FILE", of="SOURCE:NAME:TARGET")
                self._say_first(f"guessed: {', '.join(joined)}; otherwise: {said}", on_step)

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
                        ends_of = np.stack(table.duck.arrays(query)).astype(np.int64)
                        found[":".join(one.key), place == 1] = ends_of
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
            opened[text] = (branch, open_source(branch, table, role="edges", options=options))
        _, first = next(iter(opened.values()))
        ids = {"": options.node_ids}
        if self.typed:
            ids = dict(of_one_type("node_ids", options.node_ids, given))
        self._sources = {
            kind: NodeSource(
                self._duck.branch(f"nodes_{number}"), table, options, ids.get(kind), first
            )
            for number, (kind, table) in enumerate(given.items())
        }
        self._cut(opened)
        for one in self._sources.values():  # a query is asked once, as its order may change
            one.source = one.source and kept(one.duck, one.source)
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
        for text, (branch, source) in opened.items():
            own, age = of_relation(options, short_name(text), listed), self.times.age(source)
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
            self.report.notes += said_of(head_of(what, name if self.typed else ""), lines)

    def _guess(self) -> dict[str, table_columns.Held]:
        """Returns which columns hold ids, and sets which are ends."""
        judged = {
            kind: (one.duck, one.source)
            for kind, one in self._sources.items()
            if one.source is not None and (self.typed or one.matrix is None)
        }
        ends = table_columns.read_ends(self._duck, self.lists if judged else ())
        ids = {
            kind: table_columns.node_table(duck, source, kind, self._divided[kind], ends)
            for kind, (duck, source) in judged.items()
        }
        table_columns.choose([*ids.values()], self.lists, ends)
        return {kind: one for kind, one in ids.items() if not self._sources[kind].matrix}

    # Nodes

    def _number(self, ids: Mapping[str, table_columns.Held]) -> None:
        """Numbers the nodes of all types."""
        ends = [
            (column, kind, one.rows)
            for one in self.lists
            for column, kind in zip(one.ids, one.kinds, strict=True)
        ]
        for kind, opened in self._sources.items():
            report = TableReport() if self.typed else self.report
            if self.typed:
                self.report.types[kind] = report
            held = ids.get(kind)
            identity = ("", "") if held is None else (held.column, held.how)
            self.nodes[kind] = NumberedNodes(opened, self._divided[kind], identity, report)
            self.nodes[kind].number(ends if opened.source is None else ())

    def _add_missing(self) -> None:
        """Adds nodes that only edges name, if that is asked for."""
        if self._options.unknown_edges != "add":
            return
        for kind, nodes in self.nodes.items():
            named = [query for one in self.lists if (query := one.unknown(kind))]
            if named:
                said = counted(nodes.add(" UNION ".join(named)), "node")
                self.report.notes.append(
                    f"{head_of('nodes', kind)} {said} that only edges name: added, with features "
                    "of zero and without a label"
                )

    def _refuse(self) -> None:
        """Raises one error for all that is wrong, if anything is; of nodes first."""
        wrong = [
            Problem(f"{kind}: {one.message}", of_type(kind, one.fix)) if kind else one
            for kind, nodes in self.nodes.items()
            for one in nodes.problems
        ]
        for listed in self.lists:
            head = f"{head_of('edges', listed.name)} " if self.typed else ""
            own = self.typed and listed.options.relation is None
            wrong += [
                Problem(head + one.message, of_type(listed.name, one.fix) if own else one.fix)
                for one in listed.problems
            ]
        refuse(wrong)

    def _check_used(self) -> None:
        """Refuses a column that no list of edges has, and relations that are given twice."""
        for name in OF_EDGES:
            known = [one.name for one in self.lists]
            for relation, column in by_name(name, getattr(self._options, name), known):
                meant = [one.source for one in self.lists if relation in ("", one.name)]
                columns = list(dict.fromkeys(c for one in meant for c in one.columns))
                what = f"the list of {relation} has no" if relation else "no list of edges has the"
                demand(
                    having(columns, [column]),
                    f"{option(name)}: {what} column {column!r}; got {', '.join(columns)}",
                )
        keys = [found.key for one in self.lists for found in one.relations]
        for key in keys:
            demand(keys.count(key) == 1, f"{option('edges')}: {':'.join(key)} is given twice")


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
    demand(
        options.features == "columns",
        f"{option('features')}: a typed graph fills in types without features from its relations "
        "by itself; leave it out",
    )
    given, lists = options.edges or {}, dict[str, Any]()
    if edges is not None and not any(
        isinstance(one, str) and one == edges for one in given.values()
    ):
        lists[TO if options.directed else table_name(edges)] = edges
    lists |= given
    # Said again with the types of its ends, as a message advises.
    again = {one.split(":")[1] for one in lists if one.count(":") == 2}
    lists = {name: one for name, one in lists.items() if name not in again}
    demand(lists, f"a typed graph needs edges: pass {option('edges', 'FILE', of='NAME')}")
    return lists


def _node_tables(options: TableOptions) -> dict[str, Any]:
    """Returns the node table of each type; one table is that of the type ``node``."""
    nodes, advice = options.nodes, option("nodes", "FILE", of="TYPE")
    if not options.is_typed:
        return {"": nodes}
    if isinstance(nodes, Mapping) and not hasattr(nodes, "columns"):
        demand(nodes, f"a typed graph needs nodes: pass {advice}")
        return dict(nodes)
    demand(
        nodes is not None or options.edges is None,
        f"{option('edges')}: its ends are nodes of which types? Pass {advice}",
    )
    return {NODE: nodes}
