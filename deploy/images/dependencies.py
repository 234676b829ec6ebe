"""Prints what pyproject.toml asks for, one requirement per line: `dependencies.py FILE [EXTRA…]`.

For building images: with the requirements installed first, a change of code installs nothing again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(file: str, *extras: str) -> None:
    """Write the requirements of the project, or only those of the extras, to standard output."""
    project = tomllib.loads(Path(file).read_text())["project"]
    wanted = [line for extra in extras for line in project["optional-dependencies"][extra]]
    sys.stdout.write("\n".join(wanted if extras else project["dependencies"]) + "\n")


main(*sys.argv[1:])
