"""Downloads archives: their size is limited, and their SHA-256 is compared before unpacking."""

import hashlib
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Collection
from pathlib import Path

from graphcl.errors import DatasetError
from graphcl.files.atomic import whole_file
from graphcl.files.npz import check_members

TIMEOUT_SECONDS = 60
_PIECE = 1 << 20


def fetch_zip(url: str, folder: Path, *, sha256: str, names: Collection[str], limit: int) -> None:
    """Downloads a zip archive and writes the members `names` to `folder`.

    Args:
        url: the address of the archive.
        folder: created if needed; other files in it are kept.
        sha256: the archive's digest; an archive with another digest is discarded unopened.
        names: plain file names, all of which the archive must contain.
        limit: the most bytes that the archive may have, and that its members may have together.

    Raises:
        DatasetError: the archive is too large, or is not the expected one.
        OSError: the download or the writing failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        digest, size = hashlib.sha256(), 0
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            while piece := answer.read(_PIECE):
                size += len(piece)
                if size > limit:
                    raise DatasetError(f"{url}: more than {limit} bytes; not the expected file")
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise DatasetError(
                f"{url}: has the SHA-256 {digest.hexdigest()}; expected {sha256}; not unpacked"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                _unpack(archive, folder, url, names, limit)
        except zipfile.BadZipFile as error:
            raise DatasetError(f"{url}: not a zip ({error})") from None


def _unpack(
    archive: zipfile.ZipFile, folder: Path, url: str, names: Collection[str], limit: int
) -> None:
    members = check_members(archive, url, DatasetError, suffix="")
    missing = [name for name in names if name not in members]
    if missing:
        raise DatasetError(f"{url}: does not contain {missing[0]}")
    if sum(members[name].file_size for name in names) > limit:
        raise DatasetError(f"{url}: unpacks to more than {limit} bytes; not the expected file")
    for name in names:
        member = members[name]
        with (
            whole_file(folder / name) as staging,
            archive.open(member) as source,
            staging.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, _PIECE)
