"""Options of typed graphs, divided among the types of nodes and the relations.

``author=name`` gives the column `name` to the type `author`, and ``writes=share`` the column
`share` to the relation `writes`. A column without such a name goes to every table that has it; a
column of labels must be of one type then, because nothing says which is meant. Files beside a node
table (``--tags``, ``--vectors``) always need their type.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphcl.errors import GraphError, suggestion
from graphcl.tabular.options import COLUMNS, TableOptions

SINGLE = ("id_column", "split")  # one column for each type
BESIDE = ("tags", "tag_columns", "vectors", "vector_ids", "node_ids")
COMMON = ("missing", "strict", "header", "inductive", "decimal", "date_format", "duplicates")
OF_EDGES = ("source_column", "target_column", "weight")
OF_BOTH = ("one_hot", "text", "date", "ignore")  # columns of node tables and of lists of edges


def divide(
    options: TableOptions,
    columns: Mapping[str, Sequence[str] | None],
    lists: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, TableOptions]:
    """Returns the options of each type.

    Args:
        options: those of the whole graph.
        columns: the columns of each type's table; None if it is a matrix.
        lists: the columns of the lists of edges, by relation.

    Raises:
        GraphError: a column is in no table, or a label is in several.
    """
    found: dict[str, dict[str, Any]] = {kind: {} for kind in columns}
    for name in (*COLUMNS, *SINGLE):
        of_edges = (lists or {}) if name in OF_BOTH else {}
        for kind, column in _placed(name, getattr(options, name), columns, of_edges):
            if name in SINGLE:
                if name in found[kind]:
                    raise GraphError(f"{_option(name)}: type {kind!r} has two")
                found[kind][name] = column
            else:
                found[kind][name] = (*found[kind].get(name, ()), column)
    for name in BESIDE:
        for kind, value in _of_one_type(name, getattr(options, name), columns):
            found[kind][name] = value
    common: dict[str, Any] = {name: getattr(options, name) for name in COMMON}
    divided = {}
    prepared = options.preparations or {}
    for kind, own in found.items():
        if "label" in own:
            own["label_separator"] = options.label_separator
        divided[kind] = TableOptions(**common, **own, preparation=prepared.get(kind))
    if options.label_separator is not None and not any(one.label for one in divided.values()):
        raise GraphError("--label-separator: there are no labels; pass --label")
    return divided


def _placed(
    name: str,
    given: Any,
    columns: Mapping[str, Sequence[str] | None],
    lists: Mapping[str, Sequence[str]],
) -> list[tuple[str, str]]:
    """Returns the types and columns that an option names; those of lists of edges are checked."""
    found = []
    for kind, text in by_name(name, given, (*columns, *lists)):
        column = text
        text = f"{kind}={column}" if kind else column
        if kind in columns and (kind not in lists or _has(columns[kind], column)):
            found.append((kind, column))
            continue
        if _has(lists.get(kind), column):
            continue
        having = [one for one, names in columns.items() if _has(names, text)]
        if not having and not any(_has(names, text) for names in lists.values()):
            raise GraphError(f"{_option(name)}: {_nowhere(text, columns, lists)}")
        if name == "label" and len(having) > 1:
            listed, written = " and ".join(having), f"{having[0]}={text}"
            raise GraphError(
                f"--label: {text!r} is a column of {listed}; say of which: --label {written}"
            )
        found += [(one, text) for one in having]
    return found


def by_name(option: str, given: Any, known: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the values of an option, each with its type or relation; empty where none is said.

    Every option that is of a type or a relation comes through here: as ``author=name`` of a command
    line, as several such texts, as a mapping, or as one value for all.

    Args:
        option: its name in `TableOptions`.
        given: its value.
        known: types, or the short names of relations.

    Raises:
        GraphError: one is given twice, or a mapping names an unknown one.
    """
    names, pairs = list(known), list[tuple[str, Any]]()
    if given is None or (isinstance(given, tuple) and not given):
        return []
    if isinstance(given, Mapping):
        for key, value in given.items():
            name = short_name(key if isinstance(key, str) else ":".join(map(str, key)))
            if name not in names:
                near = suggestion(name, names)
                what = "relation" if option in OF_EDGES else "type"
                raise GraphError(
                    f"{_option(option)}: no {what} {name!r}; the {what}s: {', '.join(names)}{near}"
                )
            pairs.append((name, value))
    elif isinstance(given, str) or _are_texts(given):
        for text in (given,) if isinstance(given, str) else given:
            name, equals, rest = text.partition("=")
            said = equals and short_name(name) in names
            pairs.append((short_name(name), rest) if said else ("", text))
    else:
        pairs.append(("", given))
    said = [name for name, _ in pairs if name]
    if option not in COLUMNS and len(said) > len(set(said)):
        twice = next(name for name in said if said.count(name) > 1)
        raise GraphError(f"{_option(option)}: {twice!r} is given twice")
    return pairs


def _are_texts(given: Any) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)


def _nowhere(
    text: str, types: Mapping[str, Sequence[str] | None], lists: Mapping[str, Sequence[str]]
) -> str:
    """Says that no type or relation has a column, or that there is no such one."""
    columns = {**types, **lists}
    kind, equals, column = text.partition("=")
    if equals and any(_has(names, column) for names in columns.values()):
        near = suggestion(kind, columns)
        what = "types and relations" if lists else "types"
        return f"no type {kind!r}; the {what}: {', '.join(columns)}{near}"
    known = {name for names in columns.values() for name in names or ()}
    near = suggestion(text, known)
    return f"no column {text!r} in the tables of {', '.join(columns)}{near}"


def _has(names: Sequence[str] | None, column: str) -> bool:
    wanted = column.strip().lower()
    return any(name.strip().lower() == wanted for name in names or ())


def _of_one_type(name: str, given: Any, kinds: Iterable[str]) -> list[tuple[str, Any]]:
    """Returns the types that an option has a file or an array for."""
    known = list(kinds)
    pairs = by_name(name, given, known)
    if all(kind for kind, _ in pairs):
        return pairs
    if name == "tag_columns" and _are_texts(given):  # names of columns, one by one
        given = ",".join(given)
    if len(known) == 1 and not any(kind for kind, _ in pairs):
        return [(known[0], given)]
    shown = given if isinstance(given, str) else "…"
    raise GraphError(f"{_option(name)}: say of which type: {_option(name)} {known[0]}={shown}")


def of_relation(options: TableOptions, name: str, known: Iterable[str]) -> TableOptions:
    """Returns the options of one relation's list of edges: ``--weight buys=amount``.

    A column that is given to no relation is left in: the list may have it or not.
    """
    changed: dict[str, Any] = {}
    known = list(known)
    for option in OF_BOTH:
        parts = [text.partition("=") for text in getattr(options, option)]
        changed[option] = tuple(
            column if equals and first == name else f"{first}{equals}{column}"
            for first, equals, column in parts
            if not (equals and first in known and first != name)
        )
    for option in OF_EDGES:
        pairs = by_name(option, getattr(options, option), known)
        common = [column for relation, column in pairs if not relation]
        if len(common) > 1:
            shown = f"{_option(option)} {name}={common[0]}"
            raise GraphError(f"{_option(option)}: say of which relation each is: {shown}")
        own = [column for relation, column in pairs if relation == name]
        changed[option] = next(iter((*own, *common)), None)
    return replace(options, **changed)


def short_name(relation: str) -> str:
    """Returns ``writes`` for ``author:writes:paper`` and for ``writes``."""
    return relation.split(":")[1] if relation.count(":") == 2 else relation


def of_type(kind: str, words: Sequence[str]) -> tuple[str, ...]:
    """Returns words that settle a problem with one type's table, as they settle it for all."""
    columns = {_option(name) for name in (*COLUMNS, *SINGLE)}
    found: list[str] = []
    for word in words:
        of_column = bool(found) and found[-1] in columns
        found.append(f"{kind}={word}" if of_column else word)
    return tuple(found)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
