"""Installs Azurite, Microsoft's emulator of Azure Blob Storage, once for each .venv. Only `make test-stores` needs
Azurite.

Azurite is a package of npm. npm downloads the package and its dependencies with the user's proxies, mirrors and cache.
The version is fixed here; Node.js must be 18 or newer. npm does not run the install scripts of the packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from scripts.built_once import built_once

VERSION = "3.35.0"


def azurite() -> list[str]:
    """The command that starts the server, without its options. The package is installed if it is missing.

    Raises:
        RuntimeError: Node.js or npm is missing.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing = " and ".join(name for name, found in (("node", node), ("npm", npm)) if found is None)
        raise RuntimeError(
            f"the tests on Azure need Azurite {VERSION}, but PATH has no {missing}: install Node.js 18 or newer with npm,"
            " or run the tests for other storages, for example with `make test-stores STORES=s3`"
        )

    def install(folder: Path) -> Path:
        subprocess.run(
            [
                npm, "install", "--prefix", folder / "package", "--ignore-scripts", "--no-audit", "--no-fund",
                f"azurite@{VERSION}",
            ],
            stdout=sys.stderr, check=True,
        )  # fmt: skip
        return folder / "package"

    installed = built_once(f"azurite-{VERSION}", install)
    return [node, str(installed / "node_modules/azurite/dist/src/blob/main.js")]


if __name__ == "__main__":
    azurite()
