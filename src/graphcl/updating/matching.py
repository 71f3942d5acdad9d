"""From tables that name nodes by id to the grown graph, with its ids, labels and split."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, Integers
from graphcl.errors import (
    GraphError,
    ParameterError,
    counted,
    demand,
    is_command,
    option,
    suggestion,
)
from graphcl.files.patched import overlay
from graphcl.graphs.changing import (
    Changed,
    Delta,
    EdgeDelta,
    NodeDelta,
    change_graph,
    check_pairs,
    find_entries,
)
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.graphs.validation import is_labelled
from graphcl.store.columns import Ids, Names, whole_number
from graphcl.store.header import MASKS
from graphcl.tabular.delta import (
    NewEdges,
    NewNodes,
    name_of,
    of_type,
    read_ids,
    read_new,
    read_pairs,
)
from graphcl.tabular.options import TableOptions, short_name
from graphcl.tabular.times import age_of, has_age_alone, moment_of, move_ages, text_of


@dataclass(frozen=True, eq=False)
class Grown:
    """A graph that has changed, and how.

    Attributes:
        changed: the new graph, with ids, labels and splits, and the rows that differ.
        counts: how many nodes and edges are new, removed, changed.
        notes: lines for the user about the tables.
        until: the day that the graph is of now, if its tables have times.
    """

    changed: Changed
    counts: dict[str, int]
    notes: list[str]
    until: str = ""


class _Growing:
    """What tables say of the nodes of one type, beside those that the graph has.

    Attributes:
        own: the nodes of the graph.
        new: what tables say; its ids are written as the graph's.
        ids: finds nodes by their ids.
        rows: the row of each id of `new`: in the graph, or after its own if it is new; −1 if it is
            nowhere.
        fresh: which rows of the node table are new nodes.
        named: which ids of `new` are in the node table, or are ends of new edges.
        gone: rows to remove.
    """

    def __init__(self, own: Nodes, new: NewNodes) -> None:
        self.own, self.new = own, new
        self.ids = Ids(own.num_nodes if own.node_ids is None else own.node_ids)
        new.ids = self._alike(new.ids)
        self.rows = self.ids.find(new.ids)
        self.gone = np.zeros(0, np.int64)
        self.named = np.arange(len(new.ids)) < new.rows
        self.fresh = self.rows[: new.rows] < 0
        self.rows[: new.rows][self.fresh] = own.num_nodes + np.arange(self.count)

    @property
    def count(self) -> int:
        """How many nodes are new."""
        return int(self.fresh.sum())

    @property
    def stated(self) -> Integers:
        """The rows of the nodes that have a row in the node table."""
        return self.rows[: self.new.rows]

    @property
    def added(self) -> Array:
        """The ids of the new nodes."""
        return self.new.ids[: self.new.rows][self.fresh]

    def _alike(self, given: Array) -> Array:
        """Returns ids as numbers if the graph's are numbers and all of these are, as texts."""
        if not self.ids.numbers or given.dtype.kind in "iu":
            return given
        numbers = [whole_number(str(one)) for one in given.tolist()]
        if any(one is None or abs(one) >= 1 << 62 for one in numbers):
            return given
        return np.array(numbers, np.int64)

    def require(self, wanted: Array, table: str) -> Integers:
        """Returns the rows of ids.

        Raises:
            GraphError: no node has one of them.
        """
        wanted = self._alike(wanted)
        rows = self.ids.find(wanted)
        if (rows < 0).any():
            self.refuse_unknown(wanted[rows < 0], table)
        return rows

    def refuse_unknown(self, unknown: Array, table: str) -> None:
        """Raises an error that names the first of some ids which no node has."""
        first = str(unknown[0])
        ids = counted(len(unknown), "id is", "ids are")
        near = suggestion(first, self.ids.texts(0, 1000))
        raise GraphError(f"{table}: {ids} not in the graph, first {first!r}{near}")

    def notes(self) -> list[str]:
        """Returns what to say of new ids that look like a number which a node has: 1.0 and 007."""
        if not self.ids.numbers or self.added.dtype.kind in "iu":
            return []
        texts = map(str, self.added.tolist())
        meant = {text: number for text in texts if (number := _number(text)) is not None}
        rows = self.ids.find(np.array(list(meant.values()), np.int64))
        like = [pair for pair, row in zip(meant.items(), rows.tolist(), strict=True) if row >= 0]
        if not like:
            return []
        ids = counted(len(like), "new id looks", "new ids look")
        first, number = like[0]
        return [
            f"nodes: {ids} like one that the graph has, first {first!r} like {number}: ids are "
            "taken as they are written, and these are new nodes"
        ]

    def _grown_ids(self, kept: Integers) -> Any:
        """Returns the ids of the nodes that stay and of the new ones, None if they are row numbers.

        Numbers and texts together are texts.
        """
        own, new = self.own, self.added
        if self.ids.numbers and new.dtype.kind in "iu":
            old = own.ids if len(kept) == own.num_nodes else np.asarray(own.ids)[kept]
            ids = overlay(old, len(old) + np.arange(len(new)), new)
            plain = own.node_ids is None and np.array_equal(ids, np.arange(len(ids)))
            return None if plain else ids
        if not len(new) and len(kept) == own.num_nodes:
            return own.node_ids
        names = own.ids if isinstance(own.ids, Names) else Names.of(own.ids.tolist())
        stay = names if len(kept) == len(names) else names.take(kept)
        return Names.joined([stay, Names.of(new.tolist())])

    def refuse(self) -> None:
        """Refuses what cannot be meant: nodes that go and come, new nodes without a column."""
        new, both = self.new, np.isin(self.rows, self.gone) & self.named
        if both.any():
            which = f"{str(new.ids[both][0])!r}"
            what = "nodes" if int(np.argmax(both)) < new.rows else "edges"
            raise GraphError(f"update: {which} is to be removed, and is named in the new {what}")
        if self.count and new.absent:
            column, first = new.absent[0], str(self.added[0])
            lacking = f"has no column {column!r}" if column[0] != "-" else f"comes without {column}"
            raise GraphError(
                f"{new.table}: {lacking}, which the model was trained on; nodes that the graph has "
                f"keep their values, but {first!r} is new"
            )

    def delta(self, computed: int) -> NodeDelta:
        """Returns what changes; the last `computed` features come later."""
        new = self.new
        x: Any = None
        known = np.sort(self.stated[~self.fresh]) if new.x is not None else self.rows[:0]
        if self.count and self.own.x is not None:
            x = np.zeros((self.count, 0), np.float32) if new.x is None else new.x[self.fresh]
            if computed:
                given, x = x, np.zeros((self.count, self.own.num_features), np.float32)
                x[:, : given.shape[1]] = given.toarray() if scipy.sparse.issparse(given) else given
        changed_x = self._changed() if new.x is not None else None
        return NodeDelta(self.count, x, known, changed_x, self.gone)

    def _changed(self) -> Any:
        """Returns the features of known nodes in the order of their rows, complete."""
        own, new = self.own, self.new
        order = np.argsort(self.stated[~self.fresh])
        x = new.x[np.flatnonzero(~self.fresh)[order]]
        places = self.stated[~self.fresh][order]
        if len(new.features) == own.num_features:
            return x
        kept: Any = own.x
        if scipy.sparse.issparse(kept):
            old = scipy.sparse.lil_array(kept[places])
            old[:, new.features] = x
            return scipy.sparse.csr_array(old)
        old = np.array(kept[places], dtype=np.float32)
        old[:, new.features] = x.toarray() if scipy.sparse.issparse(x) else x
        return old

    def nodes(self, changed: Nodes, kept: Integers) -> Nodes:
        """Returns the nodes after the change, with their ids, labels and split."""
        places = np.concatenate([kept, self.own.num_nodes + np.arange(self.count)])
        fields = _labels(self, places) | _masks(self, places)
        fields["node_ids"] = self._grown_ids(kept)
        fields.setdefault("class_names", self.own.class_names)
        return replace(changed, **fields)


def grow(
    graph: Graph,
    options: TableOptions,
    *,
    nodes: Any = None,
    edges: Any = None,
    remove_nodes: Any = None,
    remove_edges: Any = None,
) -> Grown:
    """Returns the graph with what tables add to it, change in it and remove from it.

    Tables are given by type or relation; of the only one, they need no name.

    Args:
        graph: the old graph.
        options: how the tables are read, with the preparations of the training.
        nodes: tables of new and changed nodes.
        edges: lists of new edges.
        remove_nodes: lists of nodes to remove.
        remove_edges: lists of edges to remove.

    Raises:
        GraphError: a table is wrong, or does not fit the graph.
    """
    if any(one.splits is not None for one in graph.nodes.values()):
        graph = replace(graph, nodes={name: one.split(0) for name, one in graph.nodes.items()})
    lists, cut = _by_key(graph, "edges", edges), _by_key(graph, "remove-edges", remove_edges)
    tables = _by_type(graph, "nodes", nodes)
    computed = len(FEATURE_NAMES) if graph.is_plain and _structural(graph, options) else 0
    if graph.is_plain:
        options.require_one_type()
        weighted = graph.edge_weight is not None
        demand(
            options.weight is not None or not (lists and weighted),
            f"update: the graph's edges have weights; name their column: {option('weight')}",
        )
        demand(
            weighted or options.weight is None,
            f"update: the graph's edges have no weights; leave {option('weight')} out",
        )
    read = partial(read_new, graph, nodes=tables, edges=lists, computed=computed)
    new = read(options)
    aged = [age for one in graph.relations.values() if (age := age_of(one)) is not None]
    for last in sorted(aged, key=lambda age: age.origin)[-1:]:  # all edges grow older
        dates, old = last.clock, text_of(last.origin, dates=last.clock)
        if moment_of(new.until or old, dates=dates) < last.origin:
            new = read(replace(options, until=old))
        new.until = options.until or new.until or old
        day = moment_of(new.until, dates=dates)
        older = {key: move_ages(one, day) for key, one in graph.relations.items()}
        graph = replace(graph, relations=older)
    empty = np.zeros(0, np.int64)
    growing = {
        name: _Growing(one, new.nodes.get(name, NewNodes(empty)))
        for name, one in graph.nodes.items()
    }
    for name, table in _by_type(graph, "remove-nodes", remove_nodes).items():
        own = growing[name]
        listed, said = read_ids(table, of_type(graph, options, name, None))
        called = "remove_nodes" if graph.is_plain else f"remove_nodes {name}"
        own.gone = np.unique(own.require(listed, name_of(table, called)))
        new.notes += said
    added = {}
    for key, listed_edges in new.edges.items():
        added[key] = _added(growing, key, listed_edges, options, new.notes)
        if has_age_alone(graph.relations[key]):
            added[key] = _replacing(graph.relations[key], added[key])
    for key, pairs in _dropped(graph, options, growing, cut, new.notes).items():
        delta_of = added.get(key, EdgeDelta())
        added[key] = replace(delta_of, dropped=np.concatenate([delta_of.dropped, pairs]))
    for one in growing.values():
        one.refuse()
        new.notes += one.notes()
    delta = Delta({name: one.delta(computed) for name, one in growing.items()}, added)
    changed = change_graph(graph, delta)
    if aged:
        every = {name: np.arange(one.num_nodes) for name, one in changed.graph.nodes.items()}
        changed = changed._replace(rewired=every)
    if computed:
        changed = _with_structural(graph, changed)
    grown = replace(
        changed.graph,
        nodes={
            name: growing[name].nodes(one, changed.kept[name])
            for name, one in changed.graph.nodes.items()
        },
    )
    counts = {
        "new_nodes": sum(one.count for one in growing.values()),
        "removed_nodes": sum(len(one.gone) for one in growing.values()),
        "changed_nodes": sum(
            int((rows < len(changed.kept[name])).sum()) for name, rows in changed.moved.items()
        ),
        "edges_before": graph.num_edges,
        "edges_after": grown.num_edges,
    }
    return Grown(changed._replace(graph=grown), counts, new.notes, new.until)


def _replacing(relation: Relation, delta: EdgeDelta) -> EdgeDelta:
    """Returns new edges of which some are there: they take the place of those, the younger stays.

    For relations in which edges with the same ends are one.
    """
    pairs, features = np.asarray(delta.added), delta.features
    places, ends = find_entries(relation, pairs[:, 1], pairs[:, 0])
    there = places < ends
    if features is not None and relation.edge_features is not None:
        features = features.copy()
        features[there] = np.minimum(features[there], relation.edge_features[places[there]])
    return replace(delta, features=features, dropped=pairs[there])


def _by_type(graph: Graph, option: str, given: Any) -> dict[str, Any]:
    named = _by_name(option, given, list(graph.nodes))
    return {graph.type(name).name: table for name, table in named.items()}


def _by_key(graph: Graph, option: str, given: Any) -> dict[Key, Any]:
    named = _by_name(option, given, [key[1] for key in graph.relations])
    return {graph.relation(name).key: table for name, table in named.items()}


def _by_name(keyword: str, given: Any, known: list[str]) -> dict[str, Any]:
    """Returns tables by type or relation; one without a name is that of the only one.

    Of a graph with one type, a dictionary with another key than that is a table by columns.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        named = {key if isinstance(key, str) else ":".join(key): one for key, one in given.items()}
        if len(known) != 1 or {short_name(key) for key in named} == set(known):
            return named
    if len(known) != 1:
        which = ", ".join(known)
        how = "Write NAME=TABLE" if is_command() else "Pass " + option(keyword, "TABLE", of="NAME")
        raise ParameterError(f"update: {option(keyword)}: of which of {which}? {how}")
    return {known[0]: given}


def _added(
    growing: Mapping[str, _Growing],
    key: Key,
    listed: NewEdges,
    options: TableOptions,
    notes: list[str],
) -> EdgeDelta:
    """Returns the new edges of a relation, in rows of the grown graph.

    Raises:
        GraphError: an end is nowhere, and such edges are not to be left out.
    """
    source, target = growing[key[0]], growing[key[2]]
    source.named[listed.pairs[:, 0]] = target.named[listed.pairs[:, 1]] = True
    pairs = np.stack([source.rows[listed.pairs[:, 0]], target.rows[listed.pairs[:, 1]]], axis=1)
    stays = (pairs >= 0).all(axis=1)
    if not stays.all():
        lost = {
            end.own.name: np.unique(places[rows < 0])
            for end, places, rows in zip((source, target), listed.pairs.T, pairs.T, strict=True)
        }
        if source is target:
            lost = {source.own.name: np.unique(listed.pairs[pairs < 0])}
        if options.unknown_edges != "drop":
            end = next(end for end in (source, target) if len(lost[end.own.name]))
            of = "" if len(growing) == 1 else f": nodes of type {end.own.name}"
            end.refuse_unknown(end.new.ids[lost[end.own.name]], f"{listed.table}{of}")
        named = counted(int((~stays).sum()), "edge names", "edges name")
        notes.append(
            f"edges: {named} {counted(sum(map(len, lost.values())), 'unknown node')}: left out"
        )
    weight, features = (
        None if one is None else one[stays] for one in (listed.weight, listed.features)
    )
    return EdgeDelta(pairs[stays], weight, features)


def _dropped(
    graph: Graph,
    options: TableOptions,
    growing: Mapping[str, _Growing],
    tables: Mapping[Key, Any],
    notes: list[str],
) -> dict[Key, Integers]:
    """Returns the ends of edges to remove, by relation."""
    found: dict[Key, Integers] = {}
    for key, given in tables.items():
        called = "remove_edges" if graph.is_plain else f"remove_edges {key[1]}"
        table = name_of(given, called)
        cut = read_pairs(graph, options, {key: given})
        ends = [growing[end] for end in key[::2]]
        pairs = cut.edges[key].pairs
        rows = [
            own.require(cut.nodes[end].ids, table)[places]
            for own, end, places in zip(ends, key[::2], pairs.T, strict=True)
        ]
        found[key] = np.stack(rows, axis=1)
        notes += cut.notes

        def names(pair: Any, ends: Any = ends) -> list[str]:
            return [own.ids.texts(row, row + 1)[0] for own, row in zip(ends, pair, strict=True)]

        check_pairs(graph.relations[key], found[key], names, table)
    return found


def _structural(graph: Graph, options: TableOptions) -> bool:
    """Returns whether the last features of a graph are computed from its edges."""
    columns = len(options.preparation.features) if options.preparation is not None else 0
    said = options.features in ("structural", "both")
    more = graph.num_features - columns
    if not said and (options.preparation is None or more != len(FEATURE_NAMES)):
        return False
    demand(
        isinstance(graph.x, np.ndarray) and graph.x.dtype == np.float32,
        f"{graph.name}: features that are computed from edges are updated in float32 alone",
    )
    found = structural_features(np.asarray(graph.indptr), np.asarray(graph.indices))
    return bool(np.array_equal(found, graph.x[:, -len(FEATURE_NAMES) :]))


def _with_structural(graph: Graph, changed: Changed) -> Changed:
    """Computes the features that come from edges again; rows where they differ have moved."""
    last = slice(graph.num_features - len(FEATURE_NAMES), None)
    found = structural_features(changed.graph.indptr, changed.graph.indices)
    x = np.array(changed.graph.x)
    x[:, last] = found
    (name,), (kept,) = changed.kept, changed.kept.values()
    differs = (found[: len(kept)] != np.asarray(graph.x)[kept, last]).any(axis=1)
    moved = np.union1d(changed.moved[name], np.flatnonzero(differs))
    return changed._replace(graph=changed.graph.replace(x=x), moved={name: moved})


def _labels(growing: _Growing, places: Integers) -> dict[str, Any]:
    """Returns the labels of the nodes at some places; new classes come after the known ones.

    Raises:
        GraphError: the table's labels are of another kind than the graph's.
    """
    own, tables = growing.own, growing.new
    given = tables.y
    total = own.num_nodes + growing.count
    if own.y is None and given is None:
        return {}
    old = own.y
    names = list(own.class_names or (tables.class_names if old is None else ()))
    numbers = {one.dtype.kind == "f" for one in (old, given) if one is not None}
    demand(
        len(numbers) == 1 and len({one.ndim for one in (old, given) if one is not None}) == 1,
        f"{tables.table}: its labels are of another kind than the graph's",
    )
    single = (given if old is None else old).ndim == 1  # type: ignore[union-attr]
    number = numbers == {True}
    if given is not None and not number:
        numbered = range(int(given.max(initial=-1)) + 1 if single else given.shape[1])
        called = list(tables.class_names) or [str(one) for one in numbered]
        if names:
            names += [one for one in called if one not in names]
            code = np.array([names.index(one) for one in called], np.int64)
        else:
            try:
                code = np.array([int(one) for one in called], np.int64)
            except ValueError:
                kinds = "the graph's classes are numbers"
                raise GraphError(f"{tables.table}: label {called[0]!r}; {kinds}") from None
        if single:
            given = np.where(given >= 0, code[given], -1) if len(code) else given
        else:
            given = _widened(given, code, len(names) or len(code))
    if single:
        y: Array = np.full(total, np.nan if number else -1, np.float64 if number else np.int64)
    else:
        width = max(one.shape[1] for one in (old, given) if one is not None)
        y = np.full((total, width), -1, np.int64)
    for some, one in ((slice(own.num_nodes), old), (growing.stated, given)):
        if one is not None:
            y[some] = one if single else _widened(one, np.arange(one.shape[1]), width)
    return {"y": y[places], "class_names": tuple(names)}


def _widened(y: Integers, columns: Integers, width: int) -> Integers:
    """Returns several labels per node among more of them; no labelled node has the new ones."""
    wide = np.zeros((len(y), width), np.int64)
    wide[:, columns] = y
    wide[~is_labelled(y)] = -1
    return wide


def _masks(growing: _Growing, places: Integers) -> dict[str, Any]:
    """Returns the split of the nodes at some places; new ones without one are in no part of it."""
    own, total = growing.own, growing.own.num_nodes + growing.count
    found = {}
    for name in MASKS:
        old, given = getattr(own, name), growing.new.masks.get(name)
        if old is None and given is None:
            continue
        mask = np.zeros(total, bool)
        if old is not None:
            mask[: len(old)] = old
        if given is not None:
            mask[growing.stated] = given
        found[name] = mask[places]
    return found


def _number(text: str) -> int | None:
    """Returns the whole number that a text stands for, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else None
