"""Links: scores of pairs, likely links that are missing, and how far to trust them.

A model that is learned from the graph itself weighs what is known of a pair, and gives reasons: see
`graphcl.answers.link_model`. Its score is between 0 and 1: the chance that a pair is linked, among
pairs of which one of 21 is. A pair can also be scored by one thing alone: by the cosine of its
embeddings, or by its common neighbours. `evaluate_links` says what each is worth on a graph.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from graphcl.answers.inputs import chosen_rows, embeddings_of, graph_of, ids_of
from graphcl.answers.link_model import (
    CosineScores,
    LinkModel,
    NeighbourScores,
    PairColumns,
    RelationScores,
    best_pairs,
)
from graphcl.arrays import Array
from graphcl.errors import GraphError, demand, option, require
from graphcl.evaluation.links import (
    STRUCTURAL,
    HeldOutEdges,
    LinkScores,
    adjacency,
    hold_out_edges,
    simple_scores,
)
from graphcl.evaluation.unsupervised import EXACT_ROWS, unit_rows
from graphcl.files.records import Answer
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.settings import LINKS_BY
from graphcl.store.columns import Ids

# Pairs that the model weighs: the best by each simple score, for a link that is asked for; at least
# so many of each node, and in all.
WEIGHED, WEIGHED_OF_NODE, WEIGHED_IN_ALL = 10, 200, 20_000
_NODES = 512  # nodes whose links are weighed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Links(Answer):
    """Pairs of nodes and their scores.

    Attributes:
        pairs: numbers of the nodes, ``[n, 2]``.
        source: ids of the first nodes.
        target: ids of the second nodes.
        scores: ``[n]``; the higher, the more likely a link.
        linked: whether the graph has the edge already; None without a graph. The score of such a
            pair sees its own edge.
        why: what speaks for each link, in words; None if no model has weighed it.
        by: what has ranked them: ``embeddings`` where there was too little for a model to learn.
    """

    pairs: Array
    source: Array
    target: Array
    scores: Array
    linked: Array | None = None
    why: Array | None = None
    by: str = "embeddings"

    def __len__(self) -> int:
        return len(self.pairs)

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl links` writes."""
        table: dict[str, Any] = {
            "source": self.source,
            "target": self.target,
            "score": self.scores.astype(np.float32),
        }
        if self.linked is not None and self.linked.any():
            table["linked"] = self.linked
        return table if self.why is None else table | {"why": self.why}


@dataclass(frozen=True, repr=False)
class LinkEvaluation(Answer):
    """What scores of pairs are worth on a graph.

    Attributes:
        scores: by the ``model``, and by each thing alone: ``embeddings``, ``common_neighbours``,
            ``adamic_adar`` and ``features``. There is no model where there are too few edges.
        held_out: number of linked pairs that were removed before training.
        negatives: pairs that are not linked, per removed pair.
        share: of the linked pairs that was removed.
        seed: decides which.
        after: the day after which the pairs were linked; empty if they were removed at random.
    """

    scores: dict[str, LinkScores]
    held_out: int
    negatives: int
    share: float
    seed: int
    after: str = ""

    def columns(self) -> dict[str, Any]:
        """Returns a row per score."""
        table: dict[str, Any] = {"score": list(self.scores)}
        for name in ("roc_auc", "average_precision", "mrr"):
            table[name] = [getattr(one, name) for one in self.scores.values()]
        scores = list(self.scores.values())
        for k in scores[0].hits if scores else ():  # those that mean something among so few pairs
            table[f"hits@{k}"] = [one.hits[k] for one in scores]
        return table


def links(
    source: Any,
    pairs: Any = None,
    *,
    graph: Any = None,
    nodes: Any = None,
    rows: Any = None,
    k: int = 10,
    relation: str | None = None,
    by: str = LINKS_BY[0],
    model: Any = None,
    index: Any = None,
    seed: int = 0,
) -> Links:
    """Returns scores of given pairs, or the most likely links that a graph does not have.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or, to
            score pairs, the path of a folder of shards, which `graphcl embed RUN PARTS` wrote. Of a
            typed graph, a dictionary of embeddings by type.
        pairs: pairs of ids to score, ``[n, 2]``. Without a graph, ids are those in `.parquet`
            shards, else row numbers.
        graph: the graph; needed for missing links, which leave out its edges; and of a typed graph
            always. Pairs are then a source and a target of its `relation`, and `nodes` sources.
        nodes: ids of nodes; the k most likely missing links of each are returned, best first.
            With neither `pairs` nor `nodes`, those of the whole graph. Above 20,000 nodes an index
            is searched: it finds nearly all, and per node among the nearest 50.
        rows: instead of `nodes`: row numbers, a range or a mask.
        k: number of missing links.
        relation: of a typed graph: the name of the relation; not needed if it has one. Its scores
            by embeddings are those of `graphcl.answers.link_model`.
        by: ``model``, which is learned from the graph and weighs all that is known of a pair. Or
            one thing alone: ``embeddings``, whose cosine is the score; ``common_neighbours`` or
            ``adamic_adar``, which are of a plain graph, and need no embeddings: `source` may be
            None. Without a graph, or with too few edges to learn from, it is ``embeddings``.
        model: the fitted model that `source` are the embeddings of. With it, or as `source`, pairs
            that are learned from are embedded without their edges, as those are that lack one.
            Without it, their embeddings have seen them, and weigh too much.
        index: over the embeddings, as `graphcl neighbors` keeps one in a run; None builds one if
            the graph is large.
        seed: decides which pairs the model learns from.

    Raises:
        GraphError: an id is unknown, or there is no graph to tell what is missing.
    """
    require(by in LINKS_BY, "links", option("by"), f"one of {', '.join(LINKS_BY)}", by)
    require(k >= 1, "links", "k", "at least 1", k)
    graph = graph_of(graph)
    whole = graph if isinstance(graph, Graph) else None  # of nodes alone there are ids
    demand(
        whole is not None or (pairs is not None and by not in STRUCTURAL),
        "links: missing links need the graph; pass graph=, or pairs to score",
    )
    if model is None and hasattr(source, "transform") and not hasattr(source, "to_numpy"):
        model = source
    meant, z, who = None, source, "links"
    if relation is not None or (whole is not None and not whole.is_plain):
        only = f"{LINKS_BY[0]} or {LINKS_BY[1]} for a typed graph"
        require(by not in STRUCTURAL, "links", option("by"), only, by)
        meant = meant_relation(graph, relation)
        z = source.transform(graph) if hasattr(source, "transform") else source
        _check_rows(z, meant, graph)
        sides, who = [graph.nodes[kind] for kind in meant.key[::2]], f"links: {meant.source}"
        ids = [ids_of(one, range(one.num_nodes)) for one in sides]
    else:
        if source is not None or by not in STRUCTURAL:
            z = embeddings_of(source, graph, "links")
        ids = [ids_of(graph, range(graph.num_nodes) if z is None else z)] * 2
    of = None if nodes is None and rows is None else chosen_rows(ids[0], nodes, rows, who)
    listed = None if pairs is None else _rows_of_pairs(pairs, ids)
    edges = meant or (None if whole is None else whole.only_relation)
    scores: Any = None
    if whole is not None:
        whole.check()
        if by == LINKS_BY[0]:
            embed = (lambda _: z) if model is None else model.transform
            scores = ModelScores.learn(z, whole, meant, embed, index=index, seed=seed)
    if by in STRUCTURAL:
        scores = NeighbourScores(edges, by)
    elif scores is None:
        by = LINKS_BY[1]
        scores = RelationScores.of(z, meant) if meant else CosineScores(z, edges, index)
    linked = None
    if edges is not None and listed is not None:
        linked = np.asarray(adjacency(edges, len(ids[0]))[listed[:, 1], listed[:, 0]] > 0)
    listed, values = scores.missing(of, k) if listed is None else (listed, scores.pairs(listed))
    why = scores.why(listed) if by == LINKS_BY[0] else None
    return Links(listed, ids[0][listed[:, 0]], ids[1][listed[:, 1]], values, linked, why, by)


def meant_relation(graph: Any, name: str | None = None) -> Relation:
    """Returns a relation of a typed graph; not named, the only one.

    Raises:
        GraphError: the graph is not typed, or it has several relations and none is named.
    """
    if not isinstance(graph, Graph) or graph.is_plain:
        raise GraphError(f"links: {option('relation')} is of a graph with types; got {name!r}")
    if name is not None:
        return graph.relation(name)
    if len(graph.relations) != 1:
        names = ", ".join(":".join(key) for key in graph.relations)
        first = next(iter(graph.relations))[1]
        raise GraphError(
            f"links: the graph has several relations ({names}); name one: "
            f"{option('relation', first)}"
        )
    return graph.only_relation


def _check_rows(z: Any, relation: Relation, graph: Graph) -> None:
    """Refuses embeddings that are not of the graph's two types."""
    kinds = relation.key[::2]
    demand(
        isinstance(z, Mapping) and {*kinds} <= set(z),
        "links: of a typed graph, embeddings are a dictionary by type, as transform returns it",
    )
    for kind in kinds:
        found, expected = len(z[kind]), graph.nodes[kind].num_nodes
        demand(found == expected, f"links: {found} embeddings of {kind}; it has {expected} nodes")


def _rows_of_pairs(pairs: Any, ids: list[Any]) -> Array:
    """Returns the rows of pairs of ids, ``[n, 2]``; the two ends may have ids of their own."""
    given = list(pairs.tolist() if isinstance(pairs, np.ndarray) else pairs)
    demand(
        all(len(pair) == 2 and not isinstance(pair, str) for pair in given),
        "links: pairs must be pairs of ids, [n, 2]",
    )
    ends = [
        Ids(ids[end]).rows([pair[end] for pair in given], "links", GraphError) for end in (0, 1)
    ]
    return np.stack(ends, axis=1)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """Scores of pairs by a model of links.

    Attributes:
        model: of the relation.
        about: what it sees of pairs.
        searches: scores by one thing alone; the model weighs the best pairs by each of them.
    """

    model: LinkModel
    about: PairColumns
    searches: list[Any]

    @classmethod
    def learn(
        cls,
        z: Any,
        graph: Graph,
        relation: Relation | None,
        embed: Callable[[Graph], Any],
        *,
        index: Any = None,
        seed: int = 0,
    ) -> "ModelScores | None":
        """Learns a model from a graph; returns None if it has too few edges, or they are all.

        Args:
            z: embeddings of the graph.
            graph: a graph.
            relation: of a typed graph; None in a plain one.
            embed: embeds the graph without some of its edges.
            index: over the embeddings of a large plain graph.
            seed: decides which pairs the model learns from.
        """
        name = None if relation is None else ":".join(relation.key)
        about = PairColumns.of(z, relation or graph.only_relation)

        def rivals(held: HeldOutEdges, rows: Any, count: int) -> Array:
            left = None if relation is None else held.relation
            return _best_by_each(_searches(rows, held.graph, left), None, count)

        try:
            model = LinkModel.fit(graph, name, embed, rivals, seed=seed)
        except GraphError:
            return None
        return cls(model, about, _searches(z, graph, relation, index))

    def of_new(self, z: Array, neighbours: list[Array]) -> "ModelScores":
        """Returns the scores of pairs whose sources are new nodes of a plain graph.

        Those are weighed that are most similar to a new node, or to its neighbours.
        """
        about = self.about.of_new(z, neighbours)
        lefts = about.rows[0], unit_rows(about.out @ about.rows[1])
        searches = [RelationScores(left, about.rows[1], about.out) for left in lefts]
        return replace(self, about=about, searches=searches)

    def pairs(self, pairs: Array) -> Array:
        """Returns the chance that pairs ``[n, 2]`` are linked."""
        return np.asarray(expit(self.model.score(self.about.table(pairs))))

    def why(self, pairs: Array) -> Array:
        """Returns what speaks for each pair, in words."""
        return self.model.reasons(self.about.table(pairs))

    def missing(self, rows: Array | None, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs that are no edges, best first: of each row, or in all."""
        pairs, scores = best_pairs(self._weighed(rows, k), k, together=rows is None)
        return pairs, expit(scores)

    def _weighed(self, rows: Array | None, k: int) -> Iterator[tuple[Array, Array]]:
        """Yields missing links with their log-odds: all together, or those of each row."""
        count = max(WEIGHED * k, WEIGHED_IN_ALL if rows is None else WEIGHED_OF_NODE)
        for start in range(0, 1 if rows is None else len(rows), _NODES):
            some = None if rows is None else rows[start : start + _NODES]
            pairs = _best_by_each(self.searches, some, count)
            scores = self.model.score(self.about.table(pairs))
            ends = [[0, len(pairs)]]
            if some is not None:
                ends = np.searchsorted(pairs[:, 0], np.stack([some, some + 1], axis=1)).tolist()
            for begin, end in ends:
                yield pairs[begin:end], scores[begin:end]


def _best_by_each(searches: Iterable[Any], rows: Array | None, count: int) -> Array:
    """Returns the best pairs that lack a link by each of several scores, in order, each once."""
    found = [search.missing(rows, count)[0] for search in searches]
    return np.unique(np.concatenate(found), axis=0)


def _searches(z: Any, graph: Graph, relation: Relation | None, index: Any = None) -> list[Any]:
    """Returns scores by one thing alone, each of which finds links that the others miss."""
    if relation is not None:
        return [RelationScores.of(z, relation)]
    own, found = graph.only_relation, []
    if index is None and graph.num_nodes <= EXACT_ROWS:
        found.append(RelationScores.of({own.source: z}, own))
    return [*found, CosineScores(z, own, index), NeighbourScores(own, "adamic_adar")]


def evaluate_links(
    model: Any,
    graph: Any,
    *,
    share: float = 0.1,
    negatives: int = 100,
    seed: int = 0,
    relation: str | None = None,
    held: HeldOutEdges | None = None,
) -> LinkEvaluation:
    """Says what link scores are worth on a graph, on edges that nothing has seen.

    A share of the linked pairs is removed, a new model with the same settings is trained on the
    rest, and each removed pair is ranked among pairs that are not linked: by the model of links,
    which learns from pairs of the rest, and by each thing alone. These are the cosine of the
    embeddings, common neighbours, Adamic–Adar and the cosine of the features. All that joins a
    removed pair goes: see `graphcl.evaluation.links.hold_out_edges`. A column that you computed
    from the edges yourself stays as it is, and may give removed pairs away.

    Args:
        model: its settings are used; it is not changed.
        graph: one graph; of a typed one, the links of one relation are judged, beside the number
            of edges that a target has.
        share: of the linked pairs that is removed.
        negatives: pairs per removed pair.
        seed: decides which pairs.
        relation: of a typed graph: the name of the relation; not needed if it has one.
        held: links to judge instead; nothing is removed then.
    """
    from sklearn.base import clone

    graph = graph_of(graph)
    if not isinstance(graph, Graph):
        raise GraphError("links: an evaluation takes one graph")
    typed = relation is not None or not graph.is_plain
    if typed:
        relation = ":".join(meant_relation(graph, relation).key)
    if held is None:
        held = hold_out_edges(graph, relation, share=share, negatives=negatives, seed=seed)
    trained = clone(model).set_output(transform="default").fit(held.graph)
    z, pairs = trained.transform(held.graph), held.pairs
    left = held.relation if typed else None
    learned = ModelScores.learn(z, held.graph, left, trained.transform, seed=seed)
    by = {} if learned is None else {"model": learned.pairs(pairs)}
    if typed:
        by["embeddings"] = RelationScores.of(z, held.relation).pairs(pairs)
        by["popularity"] = np.diff(held.relation.indptr).astype(np.float64)[pairs[:, 1]]
    else:
        by |= simple_scores(held, np.asarray(z))
    return LinkEvaluation(held.rank(by), len(held.edges), negatives, share, seed)
