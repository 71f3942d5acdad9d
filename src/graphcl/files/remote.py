"""Files and folders that are elsewhere: ``s3://``, ``gs://``, ``hdfs://``, ``abfs://``, ``file://``.

All that reads a file reads one of this machine. So what is elsewhere is fetched into the user's
cache, whole and once. What has another size or another time of change is fetched anew, and the
older one is removed. Credentials are those that Arrow finds, as in the environment; those in a URI
are in no message and no file.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from graphcl.errors import InvalidInputError, demand, import_extra
from graphcl.files.atomic import whole_folder
from graphcl.files.user import user_cache

PARQUET = (".parquet", ".pq")
DATABASE = (".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3")
# A URI alone, after ``NAME=``, or in a query after FROM or JOIN; then the table of a database.
_URI = re.compile(
    r"(^(?:[^\s=/'\"()]+=)?|\b(?:from|join)\s+')([a-z][a-z0-9+.-]+://[^'\"]+?)((?:"
    + "|".join(rf"(?<={re.escape(one)})" for one in DATABASE)
    + r"):[^:/'\"]+)?(?=$|['\"])",
    re.IGNORECASE,
)
_PATH = re.compile(r"\b([a-z][a-z0-9+.-]+):/(?!/)", re.IGNORECASE)  # what `Path` makes of a URI
# The key of an owner who forgot to write its slashes as %2F is in no message, either.
_USER = re.compile(r"(?<=://)[^/\s'\"@?]*@|(?<=\bs3://)[^/\s'\"?]*:[^\s'\"?]*@")
_fetched: dict[str, str] = {}  # paths in the cache, and what is there


def local(given: Any) -> Any:
    """Returns a name of files with those that are elsewhere fetched: a path instead of a URI.

    Args:
        given: a path, a name, ``FILE:TABLE``, ``NAME=FILE`` or an SQL query, several in a tuple, or
            a mapping to them. Whatever else it is, it is returned.

    Raises:
        InvalidInputError: there is no such file, it cannot be fetched, or it changed meanwhile.
        MissingExtraError: Arrow is not installed.
    """
    if isinstance(given, Mapping):
        return {name: local(one) for name, one in given.items()}
    if isinstance(given, tuple):
        return tuple(local(one) for one in given)
    if not isinstance(given, str | Path):
        return given
    text = given if isinstance(given, str) else _PATH.sub(r"\1://", str(given))
    text = _URI.sub(lambda found: f"{found[1]}{_fetch(found[2])}{found[3] or ''}", text)
    return type(given)(text)


def named(text: str) -> str:
    """Returns a text in which files in the cache have their URIs, and no URI has a user."""
    for path, uri in _fetched.items():
        text = text.replace(path, uri)
    return _USER.sub("", text)


def _fetch(uri: str) -> Path:
    """Returns where a file or a folder is on this machine."""
    shown = _USER.sub("", uri)
    arrow = import_extra("pyarrow", "pyarrow.fs", feature=f"reading {shown}", extra="parquet")
    if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
        uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds=30"  # it would be a quarter hour
    try:
        system, place = arrow.fs.FileSystem.from_uri(uri)
        if isinstance(system, arrow.fs.LocalFileSystem):
            return Path(place)
        folder = _cached(system, _files(arrow.fs, system, place, shown), shown)
    except (OSError, arrow.ArrowException) as error:
        reason = " ".join(_USER.sub("", str(error.__cause__ or error)).split())[:400]
        raise InvalidInputError(
            f"{shown}: cannot be read: {reason}; are the scheme (s3, gs, hdfs, abfs, file), the "
            "address and the credentials right, as in AWS_ACCESS_KEY_ID?"
        ) from None
    path = folder / str(place).rpartition("/")[2]
    _fetched[str(path)] = shown
    return path


def _files(fs: Any, system: Any, place: str, shown: str) -> dict[str, Any]:
    """Returns what Arrow knows of a file, or of those in a folder, by their paths from above it.

    A store and embeddings in shards are fetched whole. Of another folder, Parquet files are, as
    `graphcl.tabular.sources` reads them. No name may lead out of the folder.
    """
    about = system.get_file_info(place)
    if about.type == fs.FileType.NotFound:
        bucket = system.get_file_info(place.partition("/")[0])
        raise InvalidInputError(f"{shown}: no such {'file' if bucket.type else 'bucket'}")
    below = [about] if about.is_file else system.get_file_info(fs.FileSelector(place, True, True))
    whole = about.is_file or {"store.json", "shards.json"} & {one.base_name for one in below}
    found = {
        one.path[place.rfind("/") + 1 :]: one
        for one in below
        if one.is_file and (whole or one.path.lower().endswith(PARQUET))
    }
    demand(
        found and not any(".." in name.split("/") for name in found),
        f"{shown}: is no store, and no folder of .parquet files",
        InvalidInputError,
    )
    return found


def _cached(system: Any, files: Mapping[str, Any], shown: str) -> Path:
    """Returns the folder in the cache that has these files."""
    state = sorted((name, one.size, one.mtime_ns) for name, one in files.items())
    digests = [hashlib.blake2b(one.encode(), digest_size=8) for one in (shown, repr(state))]
    target = user_cache().joinpath("fetched", *(one.hexdigest() for one in digests))
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(target.with_name(".lock")):  # who start together fetch it once
        if not target.exists():
            size = sum(one.size for one in files.values())
            print(f"{shown}: fetching {size:,} bytes", file=sys.stderr, flush=True)
            with whole_folder(target) as staging:
                for name, one in files.items():
                    path = staging / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    source = system.open_input_stream(one.path, compression=None)
                    with source, path.open("wb") as into:
                        shutil.copyfileobj(source, into, 1 << 22)
                    demand(
                        path.stat().st_size == one.size,
                        f"{shown}: {name} changed meanwhile; try again",
                        InvalidInputError,
                    )
            for older in target.parent.iterdir():
                if older.is_dir() and older != target:
                    shutil.rmtree(older)
    return target
