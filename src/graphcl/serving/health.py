"""Asks the service of this container whether it is alive: ``python -m graphcl.serving.health``.

Where it listens, and whether it encrypts, is said by the options that it was started with, which a
container's first process has. So the check follows `--port`, `--host` and `--ssl-certfile`. The
exit code is 0 if the service answers.
"""

import ssl
import sys
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

SECONDS = 4
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # an address that is listened on, and one to ask


def address_of(words: Sequence[str]) -> str:
    """Returns the address of the health check of a service that was started by these words."""
    given = {"--host": "127.0.0.1", "--port": "8000", "--ssl-certfile": ""}
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in given and equals:
            given[name] = value
        elif name in given and place + 1 < len(words):
            given[name] = words[place + 1]  # of an option that is given twice, the last one counts
    host = EVERYWHERE.get(given["--host"], given["--host"])
    if ":" in host:
        host = f"[{host}]"
    scheme = "https" if given["--ssl-certfile"] else "http"
    return f"{scheme}://{host}:{given['--port']}/health"


def is_alive(words: Sequence[str]) -> bool:
    """Returns whether a service answers that was started by these words."""
    # The certificate is of the service's name, and this asks it by its address: it is not checked.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    asking = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with asking.open(address_of(words), timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, HTTPException):  # nobody, nonsense, or no such port
        return False


def main() -> int:
    """Asks the service that is the process `sys.argv[1]`, by default 1."""
    process = sys.argv[1] if len(sys.argv) > 1 else "1"
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return 1
    return 0 if is_alive(words.split("\0")) else 1


if __name__ == "__main__":
    sys.exit(main())
