"""What a graph is made of, without its arrays: what an encoder is built for.

A run keeps it. A graph that is embedded later may lack types and relations of it, but has no
others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self, get_type_hints

from graphcl.errors import GraphError, RunError, demand
from graphcl.files.text import check_fields
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import EDGE, NODE, Key
from graphcl.store.header import Store, is_plain

_OBJECTS = tuple[dict, ...]  # type: ignore[type-arg]


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
    def of(cls, graph: Graph | Store, filled: Mapping[str, str] | None = None) -> Self:
        """Describes a graph; `filled` says which types had no features, and now have some."""
        given = filled or {}
        kinds: Mapping[str, Any] = graph.types if isinstance(graph, Store) else graph.nodes
        types = tuple(
            TypeSchema(name, one.num_features, given.get(name, "given"))
            for name, one in kinds.items()
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
        return is_plain(self.types, self.relations) and self.types[0].filled == "given"

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
        plain = self.is_plain
        demand(
            not plain or found_there.is_plain,
            f"{named}: is a typed graph; the model was trained on a plain one",
        )
        known = {one.name: one for one in self.types}
        unknown = [] if plain else [one for one in found_there.widths if one not in known]
        if unknown:
            listed = ", ".join(known)
            raise GraphError(f"{named}: the model knows no type {unknown[0]!r}; it knows {listed}")
        for name, width in found_there.widths.items():
            trained = self.types[0] if plain else known[name]  # a plain graph has any names
            of_type, given = "" if plain else f"type {name!r} ", width > 0
            if given != (trained.filled == "given"):
                has, had = ("", "none") if given else ("no ", f"{trained.num_features}")
                raise GraphError(f"{named}: {of_type}has {has}features; in training it had {had}")
            demand(
                not given or width == trained.num_features,
                f"{named}: {of_type}has {width} features; the model was trained on "
                f"{trained.num_features}",
            )
        relations = {one.key: one for one in self.relations}
        for relation in () if plain else found_there.relations:
            said, before = f"relation {':'.join(relation.key)}", relations.get(relation.key)
            if before is None:
                raise GraphError(f"{named}: the model knows no {said}")
            if not relation.num_edges:
                continue
            for field in ("undirected", "num_edge_features"):
                found, wanted = getattr(relation, field), getattr(before, field)
                demand(
                    found == wanted,
                    f"{named}: {said}: {field} is {found}; in training it was {wanted}",
                )
            demand(
                before.num_edges,
                f"{named}: {said} had no edges in training, so nothing was learnt of it",
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
        where = "damaged schema"
        listed = check_fields(values, {"types": _OBJECTS, "relations": _OBJECTS}, where, RunError)
        of_type, of_relation = get_type_hints(TypeSchema), get_type_hints(RelationSchema)
        types = tuple(
            TypeSchema(**check_fields(one, of_type, where, RunError)) for one in listed["types"]
        )
        relations = tuple(
            RelationSchema(**check_fields(one, of_relation, where, RunError))
            for one in listed["relations"]
        )
        names = {one.name for one in types}
        fits = len(names) == len(types) > 0 and all(one.num_features for one in types)
        fits = fits and all(one.filled in ("given", "neighbours", "structure") for one in types)
        for one in relations:
            within = not one.undirected or one.source == one.target
            fits = fits and within and {one.source, one.target} <= names
        demand(
            fits and len({one.key for one in relations}) == len(relations),
            f"{where}: a type or a relation is not as it is written",
            RunError,
        )
        return cls(types, relations)
