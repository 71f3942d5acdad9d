"""How a file is forged, and how its refusal is recognised.

Every forged file is made by the tests and refused in one line, with exit code 2. While one is read,
this process may take no more than 600 MB beyond what it has (`bounded`), and nothing that a file
asks for may be run (`nothing_runs`); both fixtures are in conftest.py.
"""

import hashlib
import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np

from graphcl.cli.main import run


class Hostile:
    def __reduce__(self):
        return (os.mkdir, ("was-run",))


def refused(arguments, capsys, message):
    capsys.readouterr()
    code = run([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert message in line
    assert "Traceback" not in err
    assert "bug" not in line


def npy(array=None, *, header=None, data=b""):
    """Returns an .npy file: of an array, or with any header before any data."""
    if header is None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def described(descr, shape, order=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}"


def zipped(path, *, kind=zipfile.ZIP_STORED, **members):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def stored(store, name, part=0, folder="*"):
    """Returns the file of an array of a store that has one array of this name in a part."""
    (file,) = Path(store, f"part-{part:05d}").glob(f"{folder}/{name}.npy")
    return file


def rewrite(store, change, file="store.json"):
    """Changes the JSON of a store; the checksum of a part's is made right again."""
    values = json.loads(Path(store, file).read_text())
    change(values)
    Path(store, file).write_text(json.dumps(values))
    if file != "store.json":
        digest = hashlib.sha256(Path(store, file).read_bytes()).hexdigest()
        part = int(Path(file).parent.name.rpartition("-")[2])
        rewrite(store, lambda header: header["parts"].__setitem__(part, digest))
