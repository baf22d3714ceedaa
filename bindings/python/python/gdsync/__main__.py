"""``python -m gdsync``: the command, as ``gdsync --help`` describes it."""

import os
import sys

from ._tool import command


def main() -> None:
    """Becomes the command, with this process's arguments."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
