"""Bodies of requests: JSON or Arrow, checked and bounded before anything is computed.

Pydantic's models say what a body may hold, to the reader of a body and to that of `/openapi.json`.
An Arrow body is a stream of record batches. Compressed batches and dictionaries are refused: a few
bytes of either can stand for gigabytes.
"""

import io
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import from_json, to_json
from typing_extensions import TypeAliasType

from graphcl.arrays import Array
from graphcl.errors import GraphError, import_extra, suggestion
from graphcl.store.columns import whole_number

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
TEXT_LENGTH = 4096  # of an id
PAUSE = 1e-8  # seconds for each byte
_LARGE = threading.Lock()
AT_ONCE = 1 << 16  # bytes of JSON that are read without a pause
OF_A_NODE = ("features", "columns", "neighbors", "weights")
KINDS = ("ids", "new", "pairs")  # a body has one of them
Prepare = Callable[[Sequence[Mapping[str, Any]]], Array]


@dataclass(frozen=True)
class Bounds:
    """What a request may ask for.

    Attributes:
        nodes: nodes, or pairs, of one request.
        neighbours: of one new node.
        k: similar nodes of each node.
        answers: nodes times k.
        bytes: of a body.
        answer_bytes: of an answer.
        in_flight: bytes of bodies and answers under way, of all requests together.
        seconds: until a request is answered.
        per_second: requests of one address; 0 is any number.
        waiting: requests that wait while others are computed.
    """

    nodes: int = 1000
    neighbours: int = 10_000
    k: int = 1000
    answers: int = 10_000
    bytes: int = 8 << 20
    answer_bytes: int = 32 << 20
    in_flight: int = 128 << 20
    seconds: float = 30.0
    per_second: float = 1000.0
    waiting: int = 256

    @property
    def lists(self) -> int:
        """Lists and objects of a body: four of each new node, and the edges between them."""
        return max(10_000, 5 * self.nodes + self.neighbours)


class AskedError(GraphError):
    """A request that cannot be understood.

    Attributes:
        status: of the answer.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, eq=False)
class New:
    """New nodes as a request describes them.

    Attributes:
        features: ``[n, P]``.
        neighbours: ids of each node's neighbours.
        weights: in the same form, or None.
        edges: pairs of new nodes, with a weight or without.
    """

    features: Array
    neighbours: list[list[str]]
    weights: list[list[float]] | None = None
    edges: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Asked:
    """What a request asks for; one of the first three is given.

    Attributes:
        ids: nodes of the graph.
        new: nodes that it does not have.
        pairs: pairs of ids.
        k: how many similar nodes, or links, of each.
        why: whether reasons are wanted.
    """

    ids: list[str] | None = None
    new: New | None = None
    pairs: list[list[str]] | None = None
    k: int = 10
    why: bool = False


class _Strict(BaseModel):
    """An object of a body: no value is made to fit, and no key is unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, given: Any) -> Any:
        known = sorted(cls.model_fields)
        for key in given if isinstance(given, dict) else ():
            if key not in known:
                near = suggestion(str(key)[:40], known) or f"; known: {', '.join(known)}"
                raise AskedError(f"unknown key {str(key)[:40]!r}{near}")
        return given


def _text(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise AskedError("an id must be text or a whole number")
    return str(given)


# An id counts as its text, so that 7 and "7" are one.
Id = Annotated[
    str,
    BeforeValidator(_text),
    Field(max_length=TEXT_LENGTH),
    WithJsonSchema({"type": ["string", "integer"], "description": "a node, by its id"}),
]
Pair = Annotated[list[Id], FailFast(), Field(min_length=2, max_length=2)]
Edge = Annotated[list[float], FailFast(), Field(min_length=2, max_length=3)]
_absent: Any = Field(default_factory=lambda: None)
ALL, SOME = "all features", "some features"


class Reader:
    """Reads the bodies of addresses.

    Args:
        takes: the keys that each address knows, of ``ids``, ``new``, ``pairs``, ``k``, ``why``.
        bounds: what is allowed.
        features: of a node.
        columns: the JSON schema of the columns of the user's table; None if the run has no table.
        prepare: turns such columns into features.

    Attributes:
        models: what a body of each address may hold.
    """

    def __init__(
        self,
        takes: Mapping[str, tuple[str, ...]],
        bounds: Bounds,
        *,
        features: int,
        columns: dict[str, Any] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._bounds, self._features, self._prepare = bounds, features, prepare

        def many(kind: Any, most: int, least: int = 0) -> Any:
            return Annotated[list[kind], FailFast(), Field(min_length=least, max_length=most)]

        def tag(given: Any) -> str:
            if isinstance(given, dict) and len(given) > features:
                raise AskedError(f"features may hold {features} at most; got {len(given)}", 413)
            return SOME if isinstance(given, dict) else ALL

        by_number = Field(description="some features by their number; the others are 0")
        row = TypeAliasType("Row", many(float, features, features))  # type: ignore[misc]
        some = TypeAliasType("Some", Annotated[dict[str, float], by_number])  # type: ignore[misc]
        both: Any = Annotated[row, Tag(ALL)] | Annotated[some, Tag(SOME)]
        raw = WithJsonSchema(columns or {})
        near, edges = bounds.neighbours, "edges among new nodes: their places in new, and a weight"
        node: Any = create_model(
            "NewNode",
            __base__=_Strict,
            features=(Annotated[both, Discriminator(tag)], _absent),
            columns=(Annotated[dict[str, Any], raw], _absent),
            neighbors=(many(Id, near), Field(default_factory=list)),
            weights=(many(float, near), _absent),
        )
        if columns is None:  # it is refused with the reason, and not described
            node.model_config["json_schema_extra"] = lambda said: said["properties"].pop("columns")
        limit = f"of each node; nodes times k may be {bounds.answers} at most"
        fields: dict[str, Any] = {
            "ids": (many(Id, bounds.nodes, 1), _absent),
            "new": (many(node, bounds.nodes, 1), _absent),
            "edges": (many(Edge, near), Field(default_factory=lambda: None, description=edges)),
            "pairs": (many(Pair, bounds.nodes, 1), _absent),
            "k": (int, Field(min(10, bounds.k), ge=1, le=bounds.k, description=limit)),
            "why": (bool, Field(False, description="of ids: give reasons, too")),
        }
        self.models: dict[str, type[BaseModel]] = {}
        for name, keys in takes.items():
            known = (*keys, *(("edges",) if "new" in keys else ()))
            chosen: Any = {key: fields[key] for key in known}
            model = create_model(f"{name.title()}Body", __base__=_Strict, **chosen)
            self.models[name] = model

    def __call__(self, name: str, body: bytes, content_type: str) -> Asked:
        """Returns what a body asks for.

        Args:
            name: the address.
            body: the bytes.
            content_type: their kind, as the request's header says.

        Raises:
            AskedError: it is no such body; the message says why.
            GraphError: columns are not those of the training.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if kind == JSON:
            given = _json(body, self._bounds.lists)
        elif kind == ARROW:
            given = _arrow(body, self._bounds, max(self._features, self._bounds.neighbours))
        else:
            raise AskedError(f"the body must be {JSON} or {ARROW}; got {kind[:100]!r}", 415)
        try:
            return self._asked(self.models[name].model_validate(given))
        except ValidationError as error:
            raise _refused(error) from None

    def _asked(self, body: Any) -> Asked:
        given = {key: getattr(body, key, None) for key in KINDS}
        kinds = [key for key, one in given.items() if one is not None]
        if len(kinds) != 1:
            wanted = " or ".join(key for key in KINDS if key in type(body).model_fields)
            raise AskedError(f"give one of {wanted}")
        edges, why = getattr(body, "edges", None), getattr(body, "why", False)
        if edges is not None and kinds != ["new"]:
            raise AskedError("edges are of new nodes; give new")
        if why and kinds != ["ids"]:
            raise AskedError("why goes with ids")
        k, number = getattr(body, "k", None), len(given[kinds[0]] or ())
        if k is not None and kinds != ["pairs"] and number * k > self._bounds.answers:
            said = f"nodes times k may be {self._bounds.answers} at most; got {number} times {k}"
            raise AskedError(f"{said}; ask for fewer nodes at a time", 413)
        if kinds == ["new"]:
            return Asked(new=self._new(body.new, edges or []), k=k or 0)
        return Asked(given["ids"], None, given["pairs"], k or 0, why)

    def _new(self, nodes: list[Any], edges: list[list[float]]) -> New:
        if len({len(one) for one in edges}) > 1:
            raise AskedError("edges must be pairs of places in new, all with a weight or without")
        weights = [one.weights for one in nodes if one.weights is not None]
        if weights and len(weights) < len(nodes):
            raise AskedError("weights must be given for all new nodes or for none")
        rows = np.zeros((len(nodes), self._features), np.float32)
        raw: dict[int, Mapping[str, Any]] = {}
        for place, one in enumerate(nodes):
            if (one.features is None) == (one.columns is None):
                raise AskedError(f"new.{place}: must have features or columns, and not both")
            if one.columns is not None:
                raw[place] = one.columns
            else:
                rows[place] = self._row(one.features)
        if raw:
            if self._prepare is None:
                raise AskedError("the run was not trained on a table with columns; give features")
            rows[list(raw)] = self._prepare(list(raw.values()))
        return New(rows, [one.neighbors for one in nodes], weights or None, edges)

    def _row(self, given: Any) -> Array:
        """Returns one row, of all features or of some by their numbers."""
        row = np.zeros(self._features, np.float64)
        if isinstance(given, dict):
            for key in given:
                number = whole_number(key)  # "00" would be a second name of 0
                if number is None or not 0 <= number < self._features:
                    last = self._features - 1
                    raise AskedError(f"feature {key[:40]!r}: features are numbered 0 to {last}")
            row[list(map(int, given))] = list(given.values())
        else:
            row[:] = given
        if not (np.abs(row) <= np.finfo(np.float32).max).all():
            raise AskedError("a feature is outside the range of float32")
        return row


def _refused(error: ValidationError) -> AskedError:
    """Returns the first thing that is wrong: where, and what."""
    first = error.errors(include_url=False)[0]
    own, said = first.get("ctx", {}).get("error"), first["msg"].replace(" after validation", "")
    if first["type"] == "model_type":
        said = "Input should be an object"
    status = 413 if first["type"] in ("too_long", "string_too_long") else 400
    if isinstance(own, AskedError):  # a new one: it must not lead back to all that was read
        said, status = str(own), own.status
    where = ".".join(str(part)[:40] for part in first["loc"] if part not in (ALL, SOME))
    return AskedError(f"{where}: {said}" if where else said, status)


def _json(body: bytes, lists: int) -> dict[str, Any]:
    """Reads JSON quickly, but no other thread has its turn meanwhile.

    So one large body is read at a time, and there is a pause between two of them.
    """
    if body.count(b"[") + body.count(b"{") > lists:
        raise AskedError(f"the body may hold {lists} lists and objects at most", 413)
    try:
        if len(body) > AT_ONCE:
            with _LARGE:
                given = from_json(body, allow_inf_nan=False)
                time.sleep(PAUSE * len(body))
        else:
            given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise AskedError(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise AskedError("the body must be a JSON object")
    if to_json(given).count(b'"') < body.count(b'"'):  # of a key given twice, one is left
        raise AskedError("a key is given twice")
    return given


def _arrow(body: bytes, bounds: Bounds, most: int) -> dict[str, Any]:
    """Returns what JSON would say; a list of a row may hold `most`.

    Columns are `id`; or `source`, `target`; or `features`, `neighbors`; or `neighbors` and those of
    the user's table.
    """
    pyarrow = import_extra("pyarrow", "pyarrow.ipc", feature="Arrow bodies", extra="serve")
    try:
        _refuse_packed(body, pyarrow)
        table = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all()
        table.validate(full=True)
    except AskedError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, struct.error, IndexError):
        raise AskedError("the body is no Arrow stream, or it breaks off") from None
    if table.num_rows > bounds.nodes:
        raise AskedError(
            f"the body may hold {bounds.nodes} rows at most; got {table.num_rows}", 413
        )
    named = set(table.column_names)
    if len(named) < len(table.column_names):
        raise AskedError("two columns have the same name")
    raw = "neighbors" in named and "features" not in named
    for column in table.schema:
        moment = raw and _is_moment(column.type, pyarrow.types)
        if not moment and not _is_plain(column.type, pyarrow.types):
            raise AskedError(f"column {column.name[:40]!r} has the type {str(column.type)[:60]}")
    columns = {name: _values(table.column(name), name, most) for name in table.column_names}
    if set(columns) == {"id"}:
        return {"ids": columns["id"]}
    if set(columns) == {"source", "target"}:
        return {"pairs": [list(pair) for pair in zip(*columns.values(), strict=True)]}
    if raw or ("features" in columns and set(columns) <= set(OF_A_NODE) - {"columns"}):
        new: list[dict[str, Any]] = []
        for row in range(table.num_rows):
            values = {name: column[row] for name, column in columns.items()}
            own = {name: values.pop(name) for name in columns if name not in OF_A_NODE}
            one = {name: value for name, value in values.items() if value is not None}
            new.append(one | ({"columns": own} if raw else {}))
        return {"new": new}
    found = ", ".join(sorted(name[:40] for name in columns))
    known = "id; or source, target; or neighbors, with features or with the columns of your table"
    raise AskedError(f"columns must be {known}; got {found}")


def _values(column: Any, name: str, most: int) -> list[Any]:
    """Returns the values of a column, row by row: other threads have their turn in between."""
    lengths = [len(one) if hasattr(one, "values") and one.is_valid else 0 for one in column]
    if max(lengths, default=0) > most:
        raise AskedError(f"a list of column {name[:40]!r} may hold {most} at most", 413)
    try:
        return [one.as_py() for one in column]
    except (ValueError, OverflowError):  # a date that Python does not have
        raise AskedError(f"column {name[:40]!r}: a value cannot be read") from None


def _is_moment(kind: Any, types: Any) -> bool:
    """Returns whether a column holds dates, times, durations or truth values, or nothing at all."""
    moment = (
        types.is_null(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_time(kind)
    )
    return bool(moment or types.is_duration(kind) or types.is_boolean(kind))


def _is_plain(kind: Any, types: Any) -> bool:
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
    text = types.is_string(kind) or types.is_large_string(kind)
    return bool(text or types.is_integer(kind) or types.is_floating(kind))


def _refuse_packed(body: bytes, pyarrow: Any) -> None:
    """Looks at the messages of a stream before any of them is unpacked."""
    source = pyarrow.BufferReader(body)
    while True:
        try:
            message = pyarrow.ipc.read_message(source)
        except EOFError:
            return
        if message is None:
            return
        if message.type not in ("schema", "record batch"):
            raise AskedError(f"an Arrow body may not hold a {message.type}")
        if message.type == "record batch" and _has_compression(message.metadata.to_pybytes()):
            raise AskedError("an Arrow body may not be compressed")


def _has_compression(metadata: bytes) -> bool:
    """Returns whether a record batch says that its buffers are compressed.

    The metadata is a flatbuffer: a Message, whose third field is the RecordBatch, whose fourth is
    the compression. A table begins with the distance back to its list of field offsets.
    """

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        size = struct.unpack_from("<H", metadata, vtable)[0]
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", metadata, vtable + place)[0] if place < size else 0
        return table + offset if offset else 0

    message = struct.unpack_from("<I", metadata, 0)[0]
    header = field(message, 2)
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return field(batch, 3) != 0
