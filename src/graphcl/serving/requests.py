"""Bodies of requests: JSON or Arrow, checked and bounded before anything is computed.

An Arrow body is a stream of record batches. Compressed batches and dictionaries are refused: a few
bytes of either can stand for gigabytes.
"""

import io
import json
import re
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphError, import_extra, suggestion

try:
    import orjson
except ImportError:  # `graphcl embed --new` reads such bodies without the extra of the service
    orjson = None  # type: ignore[assignment]

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
TEXT_LENGTH = 4096  # of an id
PAUSE = 1e-8  # seconds for each byte
_LARGE = threading.Lock()
AT_ONCE = 1 << 16  # bytes of JSON that are read by Python's own reader
OF_A_NODE = ("features", "columns", "neighbors", "weights")
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
    pairs: list[tuple[str, str]] | None = None
    k: int = 10
    why: bool = False


def read_asked(
    body: bytes,
    content_type: str,
    bounds: Bounds,
    *,
    features: int,
    takes: tuple[str, ...],
    prepare: Prepare | None = None,
) -> Asked:
    """Returns what a body asks for.

    Args:
        body: the bytes.
        content_type: their kind, as the request's header says.
        bounds: what is allowed.
        features: of a node.
        takes: the keys that the address knows, of ``ids``, ``new``, ``pairs``, ``k`` and ``why``.
        prepare: turns columns of the user's table into features; None if the run has no table.

    Raises:
        AskedError: it is no such body; the message says why.
        GraphError: columns are not those of the training.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON:
        given = _json(body, bounds.lists)
    elif kind == ARROW:
        given = _arrow(body, bounds, max(features, bounds.neighbours))
    else:
        raise AskedError(f"the body must be {JSON} or {ARROW}; got {kind[:100]!r}", 415)
    return _asked(given, bounds, features, takes, prepare)


def _json(body: bytes, lists: int) -> dict[str, Any]:
    if body.count(b"[") + body.count(b"{") > lists:
        raise AskedError(f"the body may hold {lists} lists and objects at most", 413)
    try:
        if orjson is not None and len(body) > AT_ONCE:
            given = _large_json(body)
        else:
            read = partial(json.loads, parse_constant=_refuse_constant)
            given = read(body.decode("utf-8"), object_pairs_hook=_once_each)
    except AskedError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise AskedError(f"the body is not JSON: it breaks off, or is wrong, at {where}") from None
    except UnicodeDecodeError as error:
        raise AskedError(f"the body is not UTF-8: byte {error.start}") from None
    except RecursionError:
        raise AskedError("the body is nested too deeply") from None
    except ValueError:
        raise AskedError("a number of the body has too many digits") from None
    if not isinstance(given, dict):
        raise AskedError("the body must be a JSON object")
    return given


def _large_json(body: bytes) -> Any:
    """Reads JSON in a tenth of the time, but no other thread has its turn meanwhile.

    So one is read at a time, and there is a pause between two of them.
    """
    try:
        with _LARGE:
            given = orjson.loads(body)
            time.sleep(PAUSE * len(body))
    except orjson.JSONDecodeError as error:
        body.decode("utf-8")  # says where, if that is why
        word = re.match("-?(NaN|Infinity)", error.doc[error.pos :][:9])
        if word:
            _refuse_constant(word[0])
        if "depth" in error.msg:
            raise RecursionError from None
        if "infinity" in error.msg:
            raise ValueError from None
        raise
    if orjson.dumps(given).count(b'"') < body.count(b'"'):  # of a key given twice, one is left
        raise AskedError("a key is given twice")
    return given


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise AskedError(f"the key {name[:100]!r} is given twice")
        found[name] = value
    return found


def _refuse_constant(word: str) -> None:
    raise AskedError(f"{word} is no number")


def _asked(
    given: Mapping[str, Any],
    bounds: Bounds,
    features: int,
    takes: tuple[str, ...],
    prepare: Prepare | None,
) -> Asked:
    known = {*takes, *(("edges",) if "new" in takes else ())}
    unknown = sorted(str(key)[:40] for key in set(given) - known)
    if unknown:
        raise AskedError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    kinds = [key for key in ("ids", "new", "pairs") if key in given]
    if len(kinds) != 1:
        wanted = " or ".join(key for key in takes if key not in ("k", "why"))
        raise AskedError(f"give one of {wanted}")
    if "edges" in given and kinds != ["new"]:
        raise AskedError("edges are of new nodes; give new")
    k = given.get("k", min(10, bounds.k))
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= bounds.k:
        raise AskedError(f"k must be a whole number from 1 to {bounds.k}")
    why = given.get("why", False)
    if not isinstance(why, bool) or (why and kinds != ["ids"]):
        raise AskedError("why must be true or false, and goes with ids")
    items = _list(given[kinds[0]], kinds[0], bounds.nodes)
    if not items:
        raise AskedError(f"{kinds[0]} must hold at least one")
    if "k" in takes and kinds != ["pairs"] and len(items) * k > bounds.answers:
        said = f"nodes times k may be {bounds.answers} at most; got {len(items)} times {k}"
        raise AskedError(f"{said}; ask for fewer nodes at a time", 413)
    if kinds == ["ids"]:
        return Asked(ids=[_id(one) for one in items], k=k, why=why)
    if kinds == ["pairs"]:
        pairs = [_list(one, "a pair", 2) for one in items]
        if any(len(one) != 2 for one in pairs):
            raise AskedError("a pair must be two ids")
        return Asked(pairs=[(_id(one[0]), _id(one[1])) for one in pairs], k=k)
    return Asked(new=_new(items, given.get("edges", []), bounds, features, prepare), k=k)


def _new(
    items: list[Any], edges: Any, bounds: Bounds, features: int, prepare: Prepare | None
) -> New:
    rows = np.zeros((len(items), features), np.float32)
    neighbours, weights = [], []
    raw: dict[int, Mapping[str, Any]] = {}
    for place, one in enumerate(items):
        if not isinstance(one, dict) or len({"features", "columns"} & set(one)) != 1:
            raise AskedError("a new node must be an object with features or columns, and neighbors")
        unknown = sorted(str(key)[:40] for key in set(one) - set(OF_A_NODE))
        if unknown:
            said = f"a new node has the unknown key {unknown[0]!r}"
            raise AskedError(said + suggestion(unknown[0], OF_A_NODE))
        if "features" in one:
            rows[place] = _features(one["features"], features)
        elif isinstance(one["columns"], dict):
            raw[place] = one["columns"]
        else:
            raise AskedError("columns must be an object: a value for each column, by its name")
        near = [
            _id(name) for name in _list(one.get("neighbors", []), "neighbors", bounds.neighbours)
        ]
        neighbours.append(near)
        weights.append(one.get("weights"))
    pairs = [_numbers(one, "an edge", 3) for one in _list(edges, "edges", bounds.neighbours)]
    if any(len(one) not in (2, 3) for one in pairs) or len({len(one) for one in pairs}) > 1:
        raise AskedError("edges must be pairs of places in new, all with a weight or all without")
    given = [some for some in weights if some is not None]
    if given and len(given) < len(weights):
        raise AskedError("weights must be given for all new nodes or for none")
    lists = [_numbers(some, "weights", bounds.neighbours) for some in given]
    if raw:
        if prepare is None:
            raise AskedError("the run was not trained on a table with columns; give features")
        rows[list(raw)] = prepare(list(raw.values()))
    return New(rows, neighbours, lists or None, pairs)


def _features(given: Any, number: int) -> Array:
    """Returns one row: a list of all features, or an object that has some of them by number."""
    row = np.zeros(number, np.float64)
    if isinstance(given, dict):
        for key in given:
            if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < number):
                raise AskedError(f"feature {key[:40]!r}: features are numbered 0 to {number - 1}")
        row[list(map(int, given))] = _numbers(list(given.values()), "a feature", len(given))
    else:
        values = _numbers(given, "features", number)
        if len(values) != number:
            raise AskedError(f"features must be {number} numbers; got {len(values)}")
        row[:] = values
    if not (np.abs(row) <= np.finfo(np.float32).max).all():
        raise AskedError("a feature is outside the range of float32")
    return row


def _list(given: Any, what: str, most: int) -> list[Any]:
    if not isinstance(given, list):
        raise AskedError(f"{what} must be a list")
    if len(given) > most:
        raise AskedError(f"{what} may hold {most} at most; got {len(given)}", 413)
    return given


def _numbers(given: Any, what: str, most: int) -> list[float]:
    values = _list(given, what, most)
    if not all(type(one) in (int, float) for one in values):  # no truth values
        raise AskedError(f"{what} must be numbers")
    try:
        found = np.array(values, np.float64)
    except OverflowError:
        found = np.array([np.inf])
    if not np.isfinite(found).all():
        raise AskedError(f"{what} must be finite numbers")
    listed: list[float] = found.tolist()
    return listed


def _id(given: Any) -> str:
    """Returns an id as its text, so that 7 and "7" are one."""
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise AskedError("an id must be text or a whole number")
    text = str(given)
    if len(text) > TEXT_LENGTH:
        raise AskedError(f"an id may have {TEXT_LENGTH} characters at most", 413)
    return text


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
    """Returns whether a column holds dates, times, durations or truth values."""
    moment = types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)
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
