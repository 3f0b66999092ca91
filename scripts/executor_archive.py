"""Builds an archive with Python and Lakelog for Spark's executors. `make dist` and `./spark-submit.sh --ship` run this
program.

On a host, the archive needs only the libraries of the operating system. The archive contains:

    bin/python3.11          the interpreter of .venv, with its standard library in lib/
    bin/lakelog-python      a shell script that starts the interpreter with packages/ on its path; Spark runs this
                            script
    packages/               Lakelog, and the pinned packages that Lakelog requires, but no tools for tests
    packages/.../__pycache__   the byte code and the compiled kernels, so that a host compiles nothing
    jars/                   the jars that set-up adds to Spark, for hosts on which somebody unpacks the archive by hand

All paths in the archive are relative to the program, so the archive may be unpacked anywhere. Python normally compares
the times of source files with the times in the byte code. But some programs that unpack an archive change the times of
files. So the byte code is marked as valid without this comparison. The kernels are compiled for the processor of the
host on which the archive is built. On another kind of processor, numba compiles the kernels again.

Before this program writes the archive, it starts the archive's Python with an empty environment. This Python imports
the same modules as Spark's daemon. If one of these modules is missing, no archive is written. The file
`<archive>.inputs` contains the digest of all inputs. If the current inputs have the same digest, the archive is current
and is not built again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pyspark
from numba.core.caching import UserProvidedCacheLocator
from packaging.requirements import Requirement

from scripts.add_jars import ADDED

HOME = Path(__file__).resolve().parent.parent
PROJECT = ("jobs", "lakelog", "pipeline", "schemas", "storage_engine", "conf")
EXTRAS = ("spark", "delta", "jdbc", "avro", "protobuf", "s3", "gcs", "azure", "hdfs")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT_OF_STDLIB = {
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
}
LEFT_OUT_OF_STDLIB |= {path.name for path in Path(sysconfig.get_path("stdlib")).glob("config-*")}  # to link C programs
LEFT_OUT_OF_PACKAGES = (
    "pyspark/jars/",
    "pyspark/examples/",
    "pyspark/data/",
    "pyspark/python/",
    "pyarrow/include/",
    "pyarrow/src/",
    "pyarrow/libarrow_flight.",  # Arrow's network protocol, which nothing here uses
    "pyarrow/libarrow_python_flight.",
    "pyarrow/_flight.",
    "pyarrow/flight.py",
    "zstandard/_cffi.",  # for other interpreters than CPython
)
LAUNCHER = f"""#!/bin/sh
# Runs the Python of this archive with the packages of this archive. Spark starts this program for its Python workers.
# Spark starts a daemon to plan reads. Like pipeline/spark/spark_python.py, this script starts the quiet daemon instead.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd -P) || exit 1
export PYTHONPATH="$here/../packages${{PYTHONPATH:+:$PYTHONPATH}}"
export LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
if [ "${{1-}} ${{2-}}" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m pipeline.spark.quiet_daemon "$@"
fi
exec "$here/{PYTHON}" "$@"
"""
WARM_UP = (
    "import pipeline.python_daemon, pipeline.job, pyspark.worker, pyspark.sql.worker.plan_data_source_read, delta,"
    " schemas.avro.check_kernels, boto3, obstore, hdfs_native; pipeline.python_daemon.load_kernels()"
)
_UNCHECKED = (1).to_bytes(4, "little")  # the flags of a .pyc, bytes 4 to 7: hash, not compared with the source


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make dist", description="Build the archive for executors, if it is not current."
    )
    parser.add_argument(
        "--to", type=Path, default=HOME / "dist", metavar="DIR", help="folder of the archive; default: dist/"
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=range(10),
        default=1,
        help="compression level of gzip; 0 means no compression; default: 1",
    )
    parser.add_argument(
        "--py-files", action="store_true", help="also write the project's code as a zip for spark-submit"
    )
    arguments = parser.parse_args()
    print(current_archive(arguments.to, arguments.level))
    if arguments.py_files:
        print(write_py_files(arguments.to))


def current_archive(folder: Path, level: int) -> Path:
    """The archive in the folder. If the archive is missing, or its inputs have changed, this function first builds it.

    The form is always .tar.gz, because Spark unpacks a .tar without the execute permissions of its files.
    level: how much gzip compresses, 0 to 9.
    """
    if sys.platform != "linux":
        sys.exit(
            f"lakelog: the archive for executors must be built on Linux, but this machine runs {sys.platform}: build the"
            " archive on a cluster host"
        )
    name = f"lakelog-{distribution('lakelog').version}-cp{sys.version_info.major}{sys.version_info.minor}"
    archive = folder / f"{name}-{sysconfig.get_platform()}.tar.gz"
    inputs, wanted = archive.with_name(f"{archive.name}.inputs"), digest_of_inputs()
    if archive.exists() and inputs.exists() and inputs.read_text() == wanted:
        return archive
    print(f"lakelog: building {archive.name} (half a minute)", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    inputs.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as made:
        place = Path(made) / "root"
        stage(place)
        warm_up(place)
        partial = Path(made) / archive.name
        with tarfile.open(partial, "w:gz", compresslevel=level) as file:
            for part in sorted(place.iterdir()):  # without an entry for the folder itself, which Hadoop may refuse
                file.add(part, arcname=part.name)
        partial.rename(archive)
    inputs.write_text(wanted)
    return archive


def write_py_files(folder: Path) -> Path:
    """Write a zip for spark-submit --py-files, with the project's packages but without the packages they require."""
    target = folder / f"lakelog-{distribution('lakelog').version}-py-files.zip"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as made:
        partial = Path(made) / target.name
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            for source in (source for name in PROJECT for source in files_below(HOME / name)):
                file.write(source, source.relative_to(HOME))
        partial.rename(target)
    return target


def digest_of_inputs() -> str:
    """A digest of everything that the archive is made of: the interpreter, the lock and the project's files."""
    digest = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n".encode())
    for file in (
        HOME / "requirements.lock",
        Path(__file__),
        *(file for name in PROJECT for file in files_below(HOME / name)),
    ):
        digest.update(f"{file.relative_to(HOME)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest() + "\n"


def stage(place: Path) -> None:
    """Lay out the archive in a new folder. If .venv is on the same file system, its files are linked and not copied."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    link(Path(sys.executable).resolve(), place / "bin" / PYTHON)
    for file in files_below(stdlib, LEFT_OUT_OF_STDLIB):
        for part in (file, *byte_code_of(file)):
            link(part, place / "lib" / PYTHON / part.relative_to(stdlib))
    library = sysconfig.get_config_var("INSTSONAME")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library:
        link(Path(sysconfig.get_config_var("LIBDIR")) / library, place / "lib" / library)
    launcher = place / "bin" / "lakelog-python"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)

    packages = place / "packages"
    for dependency in required(distribution("lakelog"), EXTRAS).values():
        for relative in dependency.files or ():
            source = Path(str(dependency.locate_file(relative)))
            if (
                {"..", "tests"} & {*relative.parts}
                or str(relative).startswith(LEFT_OUT_OF_PACKAGES)
                or not source.is_file()
            ):
                continue
            for file in (source, *byte_code_of(source)):
                link(file, packages / relative.parent / file.relative_to(source.parent))
    for name in PROJECT:
        for file in files_below(HOME / name):
            link(file, packages / file.relative_to(HOME))
        for folder in {file.parent for file in files_below(HOME / name) if file.suffix == ".py"}:
            for kernel in compiled_kernels(folder):
                link(kernel, packages / folder.relative_to(HOME) / "__pycache__" / kernel.name)
    jars = Path(pyspark.__file__).parent / "jars"
    for jar in (jar for pattern in ADDED for jar in jars.glob(pattern)):
        link(jar, place / "jars" / jar.name)


def warm_up(place: Path) -> None:
    """Import what executors import, in the archive's Python. The imports also write missing byte code and kernels."""
    done = subprocess.run(
        [place / "bin" / "lakelog-python", "-c", WARM_UP],
        cwd=place, env={"PATH": os.defpath, "HOME": str(place)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"lakelog: the archive's Python does not run:\n{done.stderr}")
    for file in place.rglob("*.pyc"):
        content = file.read_bytes()
        file.unlink()  # it may be a link to a file of .venv
        file.write_bytes(content[:4] + _UNCHECKED + content[8:])


def required(found: Distribution, extras: tuple[str, ...] = ()) -> dict[str, Distribution]:
    """By name: the packages that a package needs with these extras, and all packages that those packages need."""
    names: dict[str, Distribution] = {}
    pending = [(found, extras)]
    while pending:
        package, chosen = pending.pop()
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *chosen))
            if wanted and requirement.name not in names:
                names[requirement.name] = distribution(requirement.name)
                pending.append((names[requirement.name], tuple(requirement.extras)))
    return names


def files_below(folder: Path, left_out: Collection[str] = ()) -> Iterator[Path]:
    """The files of a folder and of its subfolders, in a fixed order, without byte code."""
    for path in sorted(folder.iterdir()):
        if path.name in left_out or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from files_below(path, left_out)
        else:
            yield path


def byte_code_of(source: Path) -> list[Path]:
    """The .pyc of a source file, as Python writes it without -O. Empty for other files, and if there is no .pyc."""
    compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return [compiled] if source.suffix == ".py" and compiled.exists() else []


def compiled_kernels(folder: Path) -> list[Path]:
    """The files in numba's cache with the compiled kernels of a folder's modules. Empty if there are no such files."""
    cache = os.environ.get("NUMBA_CACHE_DIR")
    subfolder = UserProvidedCacheLocator.get_suitable_cache_subpath(str(folder / "module.py"))
    return list(Path(cache, subfolder).glob("*.nb?")) if cache else []


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # two packages may have the same file
        return
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or a file system without links
        shutil.copy2(source, target)


if __name__ == "__main__":
    main()
