"""``python -m graphcl`` is ``graphcl``."""

from graphcl.cli.main import main

if __name__ == "__main__":
    main()
