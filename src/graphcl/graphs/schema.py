"""What a graph is made of, without its arrays: what an encoder is built for.

A run keeps it. A graph that is embedded later may lack types and relations of it, but has no
others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from graphcl.errors import GraphError, RunError
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import EDGE, NODE, Key


class Direction(NamedTuple):
    """One direction of a relation: `receiver` nodes take the mean over `sender` nodes."""

    relation: Key
    backwards: bool
    sender: str
    receiver: str


EDGES = Direction(EDGE, False, NODE, NODE)  # the edges of a plain graph, which are undirected


@dataclass(frozen=True)
class TypeSchema:
    """A node type: its name, and the number of its features after `filled` took place.

    `filled` says where the features are from: ``given``, ``neighbours`` or ``structure``
    (`graphcl.graphs.filling`).
    """

    name: str
    num_features: int
    filled: str = "given"


@dataclass(frozen=True)
class RelationSchema:
    """A relation: its ends, whether both directions are one, its edge features and edges."""

    source: str
    name: str
    target: str
    undirected: bool
    num_edge_features: int
    num_edges: int

    @property
    def key(self) -> Key:
        """``(source type, name, target type)``."""
        return (self.source, self.name, self.target)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Both directions; an undirected relation has one."""
        there = Direction(self.key, False, self.source, self.target)
        back = Direction(self.key, True, self.target, self.source)
        return (there,) if self.undirected else (there, back)


@dataclass(frozen=True)
class Schema:
    """The node types and the relations of a graph, in its order."""

    types: tuple[TypeSchema, ...]
    relations: tuple[RelationSchema, ...]

    @classmethod
    def of(cls, graph: Graph, filled: Mapping[str, str] | None = None) -> Self:
        """Describes a graph whose types all have features; `filled` says which were not given."""
        given = filled or {}
        types = tuple(
            TypeSchema(name, one.num_features, given.get(name, "given"))
            for name, one in graph.nodes.items()
        )
        relations = tuple(
            RelationSchema(*one.key, one.undirected, one.num_edge_features, one.num_edges)
            for one in graph.relations.values()
        )
        return cls(types, relations)

    @classmethod
    def plain(cls, num_features: int) -> Self:
        """Describes a plain graph; how many edges it has does not matter to an encoder."""
        edges = RelationSchema(*EDGE, undirected=True, num_edge_features=0, num_edges=1)
        return cls((TypeSchema(NODE, num_features),), (edges,))

    @property
    def is_plain(self) -> bool:
        """Whether it is that of a plain graph, under any names; its features were given."""
        if len(self.types) != 1 or len(self.relations) != 1:
            return False
        (nodes,), (edges,) = self.types, self.relations
        given = nodes.filled == "given" and nodes.num_features > 0
        return given and edges.undirected and not edges.num_edge_features

    @property
    def widths(self) -> dict[str, int]:
        """The number of features of each type."""
        return {one.name: one.num_features for one in self.types}

    def directions(self) -> list[Direction]:
        """Returns the directions of all relations."""
        return [one for relation in self.relations for one in relation.directions]

    def into(self, node_type: str) -> list[Direction]:
        """Returns the directions in which nodes of a type receive."""
        return [one for one in self.directions() if one.receiver == node_type]

    def check(self, graph: Graph) -> None:
        """Refuses a graph that has what this one has not; it may lack types and relations.

        Raises:
            GraphError: a type or a relation is unknown, or of another kind.
        """
        self.check_like(graph.name, Schema.of(graph))

    def check_like(self, named: str, found_there: "Schema") -> None:
        """Does as `check` for a graph of this name and schema; types may have 0 features there."""
        known = self.widths
        if self.is_plain:
            if not found_there.is_plain:
                raise GraphError(f"{named}: is a typed graph; the model was trained on a plain one")
            (width,), (trained,) = found_there.widths.values(), known.values()
            if width != trained:
                raise GraphError(
                    f"{named}: has {width} features; the model was trained on {trained}"
                )
            return
        for name in found_there.widths:
            if name not in known:
                listed = ", ".join(known)
                raise GraphError(f"{named}: the model knows no type {name!r}; it knows {listed}")
        for name, width in found_there.widths.items():
            kind = next(one for one in self.types if one.name == name)
            given = width > 0
            if given != (kind.filled == "given"):
                has, had = (
                    ("features", "none") if given else ("no features", f"{kind.num_features}")
                )
                raise GraphError(f"{named}: type {name!r} has {has}; in training it had {had}")
            if given and width != kind.num_features:
                raise GraphError(
                    f"{named}: type {name!r} has {width} features; the model was trained on "
                    f"{kind.num_features}"
                )
        relations = {one.key: one for one in self.relations}
        for relation in found_there.relations:
            key = relation.key
            if key not in relations:
                raise GraphError(f"{named}: the model knows no relation {':'.join(key)}")
            known_as = relations[key]
            what = ("undirected", "num_edge_features")
            for field in what:
                found, wanted = getattr(relation, field), getattr(known_as, field)
                empty = relation.num_edges == 0
                if found != wanted and not empty:
                    raise GraphError(
                        f"{named}: relation {':'.join(key)}: {field} is {found}; in training "
                        f"it was {wanted}"
                    )
            if relation.num_edges and not known_as.num_edges:
                raise GraphError(
                    f"{named}: relation {':'.join(key)} had no edges in training, so nothing "
                    "was learnt of it"
                )

    def to_json(self) -> dict[str, Any]:
        """Returns plain values that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads what `to_json` returned; the file that it comes from may be damaged.

        Raises:
            RunError: something is missing or of a wrong type.
        """
        try:
            types = tuple(TypeSchema(**one) for one in values["types"])
            relations = tuple(RelationSchema(**one) for one in values["relations"])
        except (TypeError, KeyError) as error:
            raise RunError(f"damaged schema ({error})") from None
        names = {one.name for one in types}
        right = all(_is_type(one) for one in types) and len(names) == len(types) > 0
        right = right and all(_is_relation(one, names) for one in relations)
        if not right or len({one.key for one in relations}) != len(relations):
            raise RunError("damaged schema (a type or a relation is not as it is written)")
        return cls(types, relations)


def _is_type(one: TypeSchema) -> bool:
    known = one.filled in ("given", "neighbours", "structure")
    return type(one.name) is str and _is_count(one.num_features, 1) and known


def _is_relation(one: RelationSchema, names: set[str]) -> bool:
    ends = type(one.name) is str and one.source in names and one.target in names
    counts = _is_count(one.num_edge_features, 0) and _is_count(one.num_edges, 0)
    within = type(one.undirected) is bool and (not one.undirected or one.source == one.target)
    return ends and counts and within


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 48
