"""The wheel in a project that has its own packages named jobs, pipeline, schemas and conf."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.executor_archive import compiled_kernels, link
from tests.java_options import JAVA_OPTIONS

HOME = Path(__file__).resolve().parent.parent
OWN = ("jobs", "pipeline", "schemas", "conf")
USE = """
import sys
import conf, jobs, pipeline, schemas
import lakelog

assert [module.OWNER for module in (conf, jobs, pipeline, schemas)] == ["the team"] * 4
orders = lakelog.open(sys.argv[1], create=True).create_topic("orders")
orders.append([{"key": "a", "value": "1"}, {"key": "b", "value": None}])
rows = orders.read()
try:
    rows.to_pandas()
except lakelog.errors.MissingPackageError as error:
    print(error)
print([(row["key"], row["value"]) for row in rows.to_arrow().to_pylist()])
assert not {"pyspark", "pandas", "deltalake"} & set(sys.modules)
"""
READ_BY_SPARK = """
import sys
from pyspark.sql import SparkSession
import lakelog

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for register in (lambda spark: None, lakelog.register):
    register(spark)
    topic = spark.read.format("lakelog").option("root", sys.argv[1]).option("subscribe", "orders").load()
    print([(bytes(row.key), row.value and bytes(row.value)) for row in topic.orderBy("offset").collect()])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, as an installer unpacks them."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=HOME,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


def required(found: Distribution, extra: str = "") -> dict[str, Distribution]:
    """The packages that an installer takes along, by name; with an extra, those of the extra too."""
    names: dict[str, Distribution] = {}
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            dependency = distribution(requirement.name)
            names |= {requirement.name: dependency} | required(dependency)
    return names


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel beside what its metadata requires without extras, and nothing more."""
    folder = tmp_path_factory.mktemp("site")
    (metadata,) = wheel.glob("*.dist-info")
    places = {folder / each.name: each for each in wheel.iterdir()}
    for dependency in required(Distribution.at(metadata)).values():
        for file in dependency.files or ():
            if file.parts[0] != "..":
                places[folder / file.parts[0]] = Path(str(dependency.locate_file(file.parts[0])))
    for place, original in places.items():
        place.symlink_to(original)
    for source in {file.parent for file in (wheel / "storage_engine").rglob("*.py")}:
        for kernel in compiled_kernels(HOME / source.relative_to(wheel)):  # otherwise the test compiles them once more
            link(kernel, source / "__pycache__" / kernel.name)
    return folder


def run_in_a_project(folder: Path, script: str, root: Path, path: Path, *options: str) -> str:
    for name in OWN:
        (folder / f"{name}.py").write_text('OWNER = "the team"\n')
    (folder / "script.py").write_text(script)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "NUMBA"))
    }
    environment |= JAVA_OPTIONS | {"PYTHONPATH": str(path), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, *options, "script.py", str(root)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "replaced a statically registered data source" not in done.stderr
    return done.stdout


def test_the_wheel_holds_lakelog_and_its_engine_only(wheel: Path) -> None:
    (metadata,) = wheel.glob("*.dist-info")
    assert {each.name for each in wheel.iterdir()} == {"lakelog", "storage_engine", "pyspark_lakelog.py", metadata.name}
    assert (metadata / "entry_points.txt").read_text() == "[console_scripts]\nlakelog = lakelog.cli:main\n"
    assert (wheel / "lakelog/ui/templates/base.html").is_file()
    assert {each.name for each in (wheel / "lakelog/ui/static").iterdir()} == {"ui.css", "refresh.js"}
    required_with = {extra: set(required(Distribution.at(metadata), extra)) for extra in ("", "spark", "delta")}
    assert not required_with[""] & {"pyspark", "pandas", "deltalake", "delta-spark"}
    assert {"pyspark", "pandas"} <= required_with["spark"]
    assert {"deltalake", "delta-spark"} <= required_with["delta"]


def test_a_project_with_packages_of_the_same_names_uses_the_wheel(site: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    project = tmp_path / "project"
    project.mkdir()
    rows = "[(b'a', b'1'), (b'b', None)]\n"
    missing = "pandas: to_pandas requires the package pandas, which is not installed. Run: pip install 'pandas'.\n"
    assert run_in_a_project(project, USE, root, site, "-S") == missing + rows
    # Spark finds the source of an installed wheel without a call, and a call does no harm.
    assert run_in_a_project(project, READ_BY_SPARK, root, site) == rows * 2
