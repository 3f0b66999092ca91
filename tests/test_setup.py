"""The set-up and spark-submit.sh on a machine that has the wrong Java, on a machine that has the wrong Python, and on a
machine that has everything.

The scripts run in a copy of the few files that they read, with a PATH that contains only what a test puts there. No
.venv is made: a substitute for Python's venv module reports the call and fails.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
TOOLS = [
    "awk",
    "basename",
    "bash",
    "cat",
    "cksum",
    "cmp",
    "cp",
    "dirname",
    "env",
    "grep",
    "head",
    "mkdir",
    "mv",
    "readlink",
    "rm",
]
TOOLS += ["sed", "tail", "tee", "touch"]
INGREDIENTS = ["requirements.lock", "pyproject.toml", "scripts/setup.sh", "scripts/add_jars.py"]
INGREDIENTS += sorted(str(source.relative_to(HOME)) for source in HOME.glob("pipeline/spark/jvm/*.java"))


class Machine:
    """A checkout in a folder with a space in its name, and a PATH of chosen commands."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "a checkout"
        self.bin = folder / "bin"
        self.environment = {"PATH": str(self.bin), "HOME": str(folder)}
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"{tool} is needed"
            (self.bin / tool).symlink_to(found)
        for name in ["spark-submit.sh", *INGREDIENTS]:
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HOME / name, self.home / name)
        (self.home / "jobs").mkdir()
        (self.home / "jobs/__init__.py").write_text('"""Not a job."""\n')
        (self.home / "jobs/greet.py").write_text('"""Greets, and that is all.\n\nMore.\n"""\n')

    def command(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def java(self, version: str = "17.0.15") -> None:
        self.command("java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")

    def python(self, name: str = "python3", version: str = "3.12.1") -> None:
        """Gives its version, lets set-up have its lock, refuses anything else, and notes it all down."""
        self.command(
            name,
            f'echo "$*" >>"$HOME/asked"\ncase "$*" in *version_info*) echo {version} ;; *flock*) ;; *) exit 1 ;; esac',
        )

    def complete_venv(self, version: str = "3.12.1", python: str = "python3") -> None:
        """What set-up leaves behind; its Python prints what it is run with."""
        interpreter = self.home / ".venv/bin/python"
        interpreter.parent.mkdir(parents=True)
        interpreter.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$PYSPARK_SUBMIT_ARGS" "$NUMBA_CACHE_DIR"\nexit 3\n')
        interpreter.chmod(0o755)
        sums = subprocess.run(
            ["cksum", *INGREDIENTS],
            cwd=self.home, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        stamp = f"version {version}\npython {python}\nhome {self.home}\n{sums}"
        (self.home / ".venv/lakelog-stamp").write_text(stamp)

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.home / script, *arguments],
            env=self.environment | environment, cwd=self.home.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def asked_of_python(self) -> str:
        asked = self.home.parent / "asked"
        return asked.read_text() if asked.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path.resolve())


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, "one line, and no more"
    for word in words:
        assert word in done.stderr


def test_no_java_says_what_to_install(machine: Machine) -> None:
    machine.python()
    assert_refused(machine.run("scripts/setup.sh"), "found no Java", "install Java 17 or 21")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", "8"), ("11.0.2", "11"), ("25", "25"), ("22-ea", "22")])
def test_wrong_java_says_what_was_found(machine: Machine, version: str, major: str) -> None:
    machine.java(version)
    machine.python()
    assert_refused(machine.run("scripts/setup.sh"), f"found Java {major} ", str(machine.bin / "java"), "17 or 21")


def test_java_that_does_not_run_is_told_from_a_wrong_one(machine: Machine) -> None:
    machine.command("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")  # macOS without a JDK
    assert_refused(machine.run("scripts/setup.sh"), "does not run", "install Java 17 or 21")


def test_java_home_without_java_is_named(machine: Machine) -> None:
    machine.java()
    assert_refused(machine.run("scripts/setup.sh", JAVA_HOME="/nowhere/jdk"), "JAVA_HOME is /nowhere/jdk")


def test_java_home_goes_before_path_and_its_release_file_is_enough(machine: Machine, tmp_path: Path) -> None:
    machine.java("17.0.1")
    (tmp_path / "jdk/bin").mkdir(parents=True)
    shutil.copy(machine.command("never-run", "exit 9"), tmp_path / "jdk/bin/java")
    (tmp_path / "jdk/release").write_text('IMPLEMENTOR="X"\nJAVA_VERSION="25.0.1"\nJAVA_VERSION_DATE="2025-10-21"\n')
    assert_refused(machine.run("scripts/setup.sh", JAVA_HOME=str(tmp_path / "jdk")), "found Java 25 ")


def test_no_python_says_what_to_install(machine: Machine) -> None:
    machine.java()
    assert_refused(machine.run("scripts/setup.sh"), "found no Python", "install Python 3.11, 3.12 or 3.13")


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0", "2.7.18"])
def test_wrong_python_says_what_was_found(machine: Machine, version: str) -> None:
    machine.java("21.0.2")
    machine.python(version=version)
    assert_refused(machine.run("scripts/setup.sh"), f"found Python {version} ({machine.bin / 'python3'})", "install")


def test_python_asked_for_is_the_only_one_tried(machine: Machine) -> None:
    machine.java()
    machine.python()
    machine.python("python3.10", "3.10.13")
    assert_refused(machine.run("scripts/setup.sh", PYTHON="python3.10"), "PYTHON is python3.10", "Python 3.10.13")
    assert_refused(machine.run("scripts/setup.sh", PYTHON="python9"), "PYTHON is python9", "does not run")


def test_shim_that_does_not_run_is_skipped(machine: Machine) -> None:
    machine.java()
    machine.command("python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    machine.python("python3.12")
    done = machine.run("scripts/setup.sh")
    assert "making .venv with Python 3.12.1" in done.stderr
    assert "command not found" not in done.stderr


def test_spark_submit_refuses_as_set_up_does(machine: Machine) -> None:
    assert_refused(machine.run("spark-submit.sh", "greet"), "found no Java")


def test_second_start_asks_nothing_of_python_and_goes_on(machine: Machine) -> None:
    machine.java()
    machine.python()
    machine.complete_venv()
    done = machine.run("scripts/setup.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.asked_of_python() == ""


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", "scripts/setup.sh"])
def test_changed_ingredient_is_set_up_again(machine: Machine, name: str) -> None:
    machine.java()
    machine.python()
    machine.complete_venv()
    with (machine.home / name).open("a") as file:
        file.write("# changed\n")
    done = machine.run("scripts/setup.sh")
    assert "making .venv with Python 3.12.1" in done.stderr
    assert not (machine.home / ".venv/lakelog-stamp").exists(), "a set-up that failed must not look complete"


def test_interrupted_set_up_is_done_again_from_nothing(machine: Machine) -> None:
    machine.java()
    machine.python()
    machine.complete_venv()
    (machine.home / ".venv/lakelog-stamp").unlink()
    (machine.home / ".venv/half-installed").touch()
    done = machine.run("scripts/setup.sh")
    assert done.returncode == 1
    assert not (machine.home / ".venv/half-installed").exists()


def test_moved_checkout_is_set_up_again(machine: Machine) -> None:
    machine.java()
    machine.python()
    machine.complete_venv()
    machine.home = machine.home.rename(machine.home.with_name("moved"))
    assert "making .venv" in machine.run("scripts/setup.sh").stderr


def test_python_asked_for_replaces_a_venv_of_another_version_only(machine: Machine) -> None:
    machine.java()
    machine.python("python3")
    machine.python("also-3.12.1")
    machine.python("python3.13", "3.13.0")
    machine.complete_venv("3.12.1")
    assert machine.run("scripts/setup.sh", PYTHON="also-3.12.1").returncode == 0
    assert "making .venv with Python 3.13.0" in machine.run("scripts/setup.sh", PYTHON="python3.13").stderr


def test_job_gets_its_arguments_and_spark_its_options(machine: Machine) -> None:
    machine.java()
    machine.complete_venv()
    options = ["--master", "local[1]", "--conf", "spark.a=it's 'b'", "--properties-file", "my.conf"]
    done = machine.run("spark-submit.sh", "greet", "--set", "a b=*", "", "--", *options)
    assert done.returncode == 3, "the job's own exit status"
    safe_path, job, *arguments, submit_args, numba_cache = done.stdout.splitlines()
    assert (safe_path, job) == ("-P", str(machine.home / "jobs/greet.py"))
    assert arguments == ["--set", "a b=*", ""]
    assert numba_cache == str(machine.home / ".venv/numba-cache")
    assert shlex.split(submit_args) == ["--load-spark-defaults", *options, "pyspark-shell"]


def test_no_job_shows_the_usage(machine: Machine) -> None:
    done = machine.run("spark-submit.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: ./spark-submit.sh [--ship[=ARCHIVE]] JOB" in done.stderr


def test_help_lists_the_jobs_by_their_first_line(machine: Machine) -> None:
    done = machine.run("spark-submit.sh", "--help")
    assert done.returncode == 0
    assert re.search(r"^  greet +Greets, and that is all\.$", done.stdout, re.MULTILINE)
    assert "__init__" not in done.stdout


def test_spark_submit_works_through_a_link(machine: Machine) -> None:
    (machine.bin / "real").symlink_to(machine.home / "spark-submit.sh")
    (machine.bin / "submit").symlink_to("real")
    linked = subprocess.run(
        ["submit", "--help"], env=machine.environment, cwd=machine.bin, capture_output=True, text=True, check=False
    )
    assert (linked.returncode, linked.stdout) == (0, machine.run("spark-submit.sh", "--help").stdout)
    assert "greet" in linked.stdout


def test_set_up_ignores_cdpath(machine: Machine) -> None:
    """The Makefile and the Dockerfile source the script by a relative path, which `cd` looks up in CDPATH."""
    machine.java()
    machine.python()
    machine.complete_venv()
    (machine.home.parent / "elsewhere/scripts").mkdir(parents=True)
    done = subprocess.run(
        ["bash", "-c", '. scripts/setup.sh; echo "$lakelog_home"'],
        env=machine.environment | {"CDPATH": str(machine.home.parent / "elsewhere")},
        cwd=machine.home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [str(machine.home)]), done


@pytest.mark.parametrize("job", ["nothing", "__init__", "../greet", "greet.py", "-x"])
def test_unknown_job_names_the_jobs(machine: Machine, job: str) -> None:
    done = machine.run("spark-submit.sh", job)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no job {job}" in done.stderr
    assert "  greet " in done.stderr


def test_lock_pins_all_that_pyproject_names_with_hashes() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())
    lock = (HOME / "requirements.lock").read_text()
    pinned = {name.lower() for name in re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE)}
    named = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["demo"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    ]
    assert {re.split(r"[<>=[]", requirement)[0].lower() for requirement in named} <= pinned
    for entry in re.split(r"\n(?=[A-Za-z])", lock)[1:]:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_no_package_host_is_named() -> None:
    files = [HOME / name for name in ["requirements.lock", "pyproject.toml", "Makefile", "spark-submit.sh"]]
    for file in [*files, *HOME.glob("scripts/*.*"), *HOME.glob("conf/*")]:
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", file.read_text()), file
