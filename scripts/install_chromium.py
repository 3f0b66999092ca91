"""Installs Chromium without a window, once for each .venv, for the tests that open pages in a browser. These tests use
this program only if neither CHROMIUM nor PATH names a browser.

The npm package @sparticuz/chromium contains the program, the libraries of NSS, software drawing and a font, compressed
with Brotli. npm downloads the package with the user's proxies, mirrors and cache. The version is fixed here, and npm
compares the digest of the download with that of the registry. No script of the package runs.

    <.venv>/chromium-<version>/headless    starts the program with its libraries and its font; needs no root rights
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import cramjam

from scripts.built_once import built_once

VERSION = "147.0.0"
_ARCHIVES = {"al2023": "nss", "swiftshader": ".", "fonts": "fonts"}
"""The archives of the package, and where their files go. The program looks for the libraries of software drawing beside
itself."""
_START = """#!/bin/sh
# Starts Chromium with the libraries and the font of this folder.
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/nss/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" FONTCONFIG_FILE="$here/only-these.conf"
exec "$here/chromium" "$@"
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir></fontconfig>
"""


def chromium() -> Path | None:
    """The program, which is installed if it is missing; None if this machine cannot install it, because it has no npm,
    or is not a Linux on an x86-64.

    Raises:
        RuntimeError: npm cannot download the package.
    """
    npm = shutil.which("npm")
    if npm is None or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None

    def install(folder: Path) -> Path:
        command = [npm, "pack", "--silent", f"@sparticuz/chromium@{VERSION}"]
        packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if packed.returncode:
            raise RuntimeError(
                f"npm cannot download @sparticuz/chromium {VERSION}, which the tests in a browser need: check npm's registry,"
                f" or let CHROMIUM name a browser. npm says: {packed.stderr.strip()}"
            )
        whole = folder / "whole"
        whole.mkdir()
        with tarfile.open(folder / packed.stdout.split()[-1]) as package:
            (whole / "chromium").write_bytes(_unpacked(package, "chromium.br"))
            for name, target in _ARCHIVES.items():
                with tarfile.open(fileobj=io.BytesIO(_unpacked(package, f"{name}.tar.br"))) as archive:
                    archive.extractall(whole / target, filter="data")
        (whole / "headless").write_text(_START)
        (whole / "only-these.conf").write_text(_FONTS)
        for name in ("chromium", "headless"):
            (whole / name).chmod(0o755)
        return whole

    return built_once(f"chromium-{VERSION}", install) / "headless"


def _unpacked(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(f"package/bin/{name}")
    assert file is not None, "a regular file"
    return bytes(cramjam.brotli.decompress(file.read()))


if __name__ == "__main__":
    installed = chromium()
    if installed is None:
        sys.exit(
            "found no npm on PATH, or a machine that is not a Linux on an x86-64: install Chromium, or let CHROMIUM name it"
        )
    print(installed)
