"""Writes embeddings of a graph in parts: a folder with a file for each part, written together.

    FOLDER/part-00000.npy     the rows of the first part (`.parquet` and `.csv` with ids)
    FOLDER/part-00001.npy     …
    FOLDER/shards.json        the parts' ranges of nodes, their build, the width, the model

Those of a typed graph are such a folder for each type, `FOLDER/type-0` and so on, and
`FOLDER/shards.json` lists the types.

The folder appears whole or not at all: every process writes its file into a hidden folder of the
first process, which must be on a disk that all of them see. `graphcl.partitioned.embeddings` reads
it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from graphcl.distributed import Share, agree, from_rank
from graphcl.errors import RunError, StoreError
from graphcl.files.atomic import check_new_folder, whole_folder
from graphcl.partitioned.embeddings import FILE, KIND, MARK, TYPED_MARK, ends_digest, type_name
from graphcl.store.header import FORMAT, Store, StoredType, part_name

TABLES = (".parquet", ".csv")  # a folder whose name ends so holds such files; else .npy


def check_shards_folder(path: Path, *, overwrite: bool) -> None:
    """Refuses an output folder before any work is done for it."""
    check_new_folder(path, KIND, FILE, RunError, overwrite=overwrite)


def suffix_of(path: Path) -> str:
    """Returns the suffix of the shards in a folder of this name."""
    return path.suffix if path.suffix in TABLES else ".npy"


@contextmanager
def whole_shards(path: Path, share: Share) -> Iterator[Path]:
    """Yields a hidden folder, the same in all processes; it appears at `path` if all succeed."""
    with ExitStack() as staged:
        folder = staged.enter_context(whole_folder(path)) if share.first else path
        yield Path(from_rank(str(folder.absolute()).encode(), share).decode())


def write_shard(
    folder: Path,
    suffix: str,
    parts: StoredType,
    share: Share,
    dim: int,
    write: Callable[[Path], None],
    *,
    model: str = "",
) -> None:
    """Writes this process's file by `write`, and in the first process `shards.json` after all.

    Args:
        folder: as `whole_shards` yields it.
        suffix: of the files.
        parts: the graph.
        share: this process's place in the group.
        dim: the width.
        write: writes this process's rows to a path.
        model: a checksum of the weights; readers refuse to join them with another run.

    Raises:
        StoreError: in every process, if one of them cannot write.
    """
    problem, own = "", {"bytes": 0, "ends": ""}
    path = folder / f"{part_name(share.rank)}{suffix}"
    try:
        write(path)
        own = {"bytes": path.stat().st_size, "ends": ends_digest(path)}
    except OSError as error:
        problem = f"part {share.rank}: its shard cannot be written ({error.strerror})"
    agree(problem, share, StoreError)
    said = json.dumps(own).encode()
    sums = [json.loads(from_rank(said, share, rank=rank)) for rank in range(share.world)]
    if not share.first:
        return
    ranges = zip(parts.starts[:-1].tolist(), parts.starts[1:].tolist(), sums, strict=True)
    listed = [
        {"file": f"{part_name(number)}{suffix}", "start": start, "stop": stop, **about}
        for number, (start, stop, about) in enumerate(ranges)
    ]
    _describe(folder, MARK, parts, model=model, dim=dim, shards=listed)


def _describe(folder: Path, mark: str, parts: StoredType | Store, **more: Any) -> None:
    """Writes `shards.json`."""
    about = {mark: FORMAT, "name": parts.name, "build": parts.build, "num_nodes": parts.num_nodes}
    (folder / FILE).write_text(json.dumps(about | more, indent=1) + "\n")


def write_typed_shards(
    folder: Path,
    suffix: str,
    parts: Store,
    share: Share,
    dim: int,
    writes: Mapping[str, Callable[[Path], None]],
    *,
    model: str = "",
) -> None:
    """Writes this process's file of each type, as `write_shard` does.

    `writes` has for each type what writes this process's rows of it to a path.
    """

    def written(path: Path, write: Callable[[Path], None]) -> None:
        path.parent.mkdir(exist_ok=True)
        write(path)

    for place, (name, write) in enumerate(writes.items()):
        own = folder / type_name(place)
        write_shard(
            own, suffix, parts.types[name], share, dim, partial(written, write=write), model=model
        )
    if share.first:
        _describe(folder, TYPED_MARK, parts, model=model, dim=dim, types=list(writes))
