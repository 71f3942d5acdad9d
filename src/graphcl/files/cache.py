"""Where this user's files that can be made again are kept."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Returns the folder, which need not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphcl"
