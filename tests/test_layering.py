"""Tests which package may import which other package. The tests read the import statements.

    jobs/  ->  pipeline/  ->  lakelog/  ->  storage_engine/ ;  schemas/ beside

An arrow points from a package to the package that it imports. No import may go in the other direction. The tables of
this module begin with the lowest package. A package may use only the names in another package's `__all__`. No module
has a name that says nothing, such as utils. It is easier to refuse a wrong import or name than to repair it later.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ["jobs", "lakelog", "pipeline", "schemas", "storage_engine"]

# The engine: each package, and which it imports. The first is the modules beside the packages: errors, clock, progress.
ENGINE = {
    "": "",
    "storage": "",
    "record": "",
    "config": "record",
    "log": "storage record config",
    "cleaner": "storage record config log",
    "kafka_dir": "storage record config log cleaner",
    "topic.chain": "storage config log",
    "topic.readers": "storage record config log topic.chain",
    "topic": "storage config log topic.chain topic.readers",
    "topic.append": "storage record config log topic.chain topic",
    "topic.clean": "storage config log cleaner topic.chain topic.readers topic topic.append",
    "topic.kafka": "storage record config log kafka_dir topic.chain topic.readers topic topic.append",
    "verify": "storage record config log kafka_dir topic.chain topic.readers topic topic.append topic.kafka",
}
# What stands on the engine: each imports those before it, as far as they are listed.
ABOVE = {
    "schemas": "",
    "lakelog.dead_letter_tables": "",
    "lakelog.delta_options": "",
    "lakelog.delta": "",
    "lakelog.terminal": "",
    "lakelog.doctor": "",
    "lakelog.dump": "",
    "lakelog.optional": "",
    "lakelog.given_records": "",
    "lakelog.garbage_collection": "",
    "lakelog.report": "lakelog.dead_letter_tables lakelog.delta_options lakelog.delta lakelog.optional",
    "lakelog.metrics": "lakelog.optional lakelog.report",
    "lakelog.rows": "lakelog.optional",
    "lakelog.opening": "",
    "lakelog.inspection": "",
    "lakelog.ui": "lakelog.dead_letter_tables lakelog.terminal lakelog.optional lakelog.report lakelog.metrics"
    " lakelog.inspection",
    "lakelog.spark": "lakelog.rows lakelog.opening lakelog.given_records lakelog.garbage_collection",
    "lakelog.cli.output": "lakelog.terminal",
    "lakelog.cli.stopping": "",
    "lakelog.cli.options": "lakelog.opening lakelog.inspection lakelog.cli.output",
    "lakelog.cli.directory_results": "lakelog.cli.output",
    "lakelog.cli.topics": "lakelog.terminal lakelog.inspection lakelog.cli.output lakelog.cli.options",
    "lakelog.cli.kafka_tools": "lakelog.dump lakelog.inspection lakelog.given_records lakelog.cli.output lakelog.cli.options",
    "lakelog.cli.records": "lakelog.terminal lakelog.cli.output lakelog.cli.options lakelog.cli.directory_results"
    " lakelog.cli.kafka_tools",
    "lakelog.cli.clean": "lakelog.terminal lakelog.inspection lakelog.cli.output lakelog.cli.stopping lakelog.cli.options"
    " lakelog.cli.directory_results",
    "lakelog.cli.inspect": "lakelog.terminal lakelog.doctor lakelog.dump lakelog.report lakelog.metrics lakelog.inspection"
    " lakelog.ui lakelog.cli.output lakelog.cli.stopping lakelog.cli.options",
    "pipeline.settings": "",
    "pipeline.spark": "lakelog.garbage_collection lakelog.spark",
    "pipeline.job_metrics": "lakelog.terminal lakelog.optional lakelog.metrics pipeline.spark",
    "pipeline.job": "lakelog.terminal lakelog.opening lakelog.cli.output lakelog.cli.options lakelog.cli.clean"
    " pipeline.settings pipeline.spark pipeline.job_metrics",
    "pipeline.model_changes": "schemas",
    "pipeline.topic_model": "schemas pipeline.settings pipeline.model_changes",
    "pipeline.stop_request": "",
    "pipeline.delta": "schemas lakelog.dead_letter_tables lakelog.delta_options lakelog.delta lakelog.rows"
    " lakelog.spark"
    " pipeline.settings pipeline.spark pipeline.job pipeline.model_changes",
    # The Python API stands above what reads exported tables.
    "lakelog": "lakelog.optional lakelog.rows lakelog.opening lakelog.given_records lakelog.inspection lakelog.spark"
    " pipeline.delta",
    "pipeline.jdbc": "lakelog.dead_letter_tables lakelog.optional pipeline.settings pipeline.delta",
    "pipeline.export": "lakelog.dead_letter_tables lakelog.delta_options lakelog.optional lakelog.spark"
    " pipeline.settings pipeline.spark pipeline.job pipeline.model_changes pipeline.topic_model"
    " pipeline.stop_request pipeline.delta pipeline.jdbc",
    "lakelog.cli.tables": "lakelog.optional lakelog.terminal lakelog.cli.output lakelog.cli.options pipeline.settings"
    " pipeline.job pipeline.model_changes pipeline.topic_model pipeline.export",
    "lakelog.cli": "lakelog.cli.output lakelog.cli.topics lakelog.cli.kafka_tools lakelog.cli.records lakelog.cli.clean"
    " lakelog.cli.inspect lakelog.cli.tables",
    "pipeline.ingest": "schemas lakelog.dead_letter_tables lakelog.spark pipeline.settings pipeline.spark"
    " pipeline.model_changes pipeline.topic_model pipeline.stop_request pipeline.delta",
    "pipeline.clean": "lakelog.inspection lakelog.spark lakelog.cli.clean pipeline.settings pipeline.spark pipeline.job",
    "pipeline": "lakelog.dead_letter_tables lakelog.delta_options lakelog.spark pipeline.settings pipeline.spark"
    " pipeline.delta pipeline.ingest",
    "jobs": "lakelog.dead_letter_tables pipeline.spark pipeline.job pipeline.topic_model pipeline.delta"
    " pipeline.export"
    " pipeline.ingest pipeline.clean pipeline",
}
ROOMS = [f"storage_engine.{name}".rstrip(".") for name in ENGINE] + list(ABOVE)
MAY_IMPORT = {
    f"storage_engine.{name}".rstrip("."): {"storage_engine", *(f"storage_engine.{each}" for each in allowed.split())}
    for name, allowed in ENGINE.items()
} | {name: set(allowed.split()) for name, allowed in ABOVE.items()}
OF_SPARK = {"pyspark", "delta", "py4j"}
OF_TERMINALS = {"typer", "rich", "click", "html"}
STRANGERS = {
    "storage_engine": OF_SPARK | OF_TERMINALS | {"schemas", "lakelog", "pipeline", "jobs"},
    "schemas": OF_SPARK | OF_TERMINALS,
}
NAMED_AFTER_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "tools", "lib", "base"}

MODULES = sorted(path.relative_to(HOME) for package in PACKAGES for path in (HOME / package).rglob("*.py"))


def parsed(module: Path) -> ast.Module:
    return ast.parse((HOME / module).read_text(), filename=str(module))


@cache
def imports(module: Path) -> list[tuple[str, list[str]]]:
    """Each imported module by its full name, with the names taken from it; those inside functions too."""
    return list(_imports(module))


def _imports(module: Path) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(module.parent.parts[: len(module.parent.parts) - node.level + 1]) if node.level else []
            yield ".".join([*package, *filter(None, [node.module])]), [alias.name for alias in node.names]


@cache
def public_names(package: str) -> list[str] | None:
    """`__all__` of the package's __init__.py; None if it has none."""
    for node in parsed(Path(package, "__init__.py")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def room(name: str) -> str | None:
    """Which entry of the table a module or one of its names belongs to; None for what is not ours."""
    while name and name not in ROOMS:
        name = name.rpartition(".")[0]
    return name or None


def imported_rooms(module: Path) -> set[str]:
    in_engine = module.parts[0] == "storage_engine"  # what stands on the engine may import all of it
    names = {f"{name}.{each}" for name, taken in imports(module) for each in taken or [""]}
    found = {room(name.rstrip(".")) for name in names}
    own = room(".".join(module.with_suffix("").parts).removesuffix(".__init__"))
    return {
        each
        for each in found
        if each is not None and each != own and (in_engine or not each.startswith("storage_engine"))
    }


@pytest.mark.parametrize("name", ROOMS)
def test_package_imports_those_that_the_table_names(name: str) -> None:
    own = [path for path in MODULES if room(".".join(path.with_suffix("").parts).removesuffix(".__init__")) == name]
    assert own, "no such package: take it out of the table"
    imported = {each: module for module in own for each in imported_rooms(module)}
    not_allowed = {each: str(module) for each, module in imported.items() if each not in MAY_IMPORT[name] - {name}}
    assert not not_allowed, f"{name} may not import these; the module that does"
    unused = MAY_IMPORT[name] - imported.keys() - {name, "storage_engine"}
    assert not unused, f"{name} may import these and does not: take them out of the table"


def test_the_tables_arrows_point_one_way() -> None:
    for name, allowed in MAY_IMPORT.items():
        assert {each for each in allowed if ROOMS.index(each) > ROOMS.index(name)} == set(), name


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_knows_neither_tests_nor_what_is_for_others(module: Path) -> None:
    imported = {name.split(".")[0] for name, _ in imports(module)}
    assert not imported & (STRANGERS.get(module.parts[0], set()) | {"tests", "bench"})


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = {str(module): {part.removesuffix(".py") for part in module.parts} for module in MODULES}
    assert [module for module, parts in named.items() if parts & NAMED_AFTER_NOTHING] == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_names_taken_from_a_package_are_public_there(module: Path) -> None:
    for name, taken in imports(module):
        if name in PACKAGES and name != module.parts[0]:
            submodules = {path.stem for path in (HOME / name).iterdir()}
            public = public_names(name)
            assert public is not None, f"{name}/__init__.py has no __all__, but {module} takes {taken} from it"
            assert set(taken) - submodules <= set(public), f"{module} takes what {name} does not offer"


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_what_the_package_has(package: str) -> None:
    body = parsed(Path(package, "__init__.py")).body
    bound = {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    bound |= {
        node.targets[0].id for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    public = public_names(package) or []
    assert len(public) == len(set(public))
    if "__getattr__" not in {node.name for node in body if isinstance(node, ast.FunctionDef)}:
        assert set(public) <= bound


def test_private_names_stay_in_their_module() -> None:
    for module in MODULES:
        for name, taken in imports(module):
            if name.split(".")[0] in PACKAGES:
                private = [taken_name for taken_name in taken if taken_name.startswith("_")]
                assert not private, f"{module} takes {private} from {name}"


STORAGE = Path("storage_engine/storage")
STORAGE_CLASSES = {
    node.name
    for module in MODULES
    if module.is_relative_to(STORAGE)
    for node in ast.walk(parsed(module))
    if isinstance(node, ast.ClassDef)
}


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute of an expression."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute)
    }


@pytest.mark.parametrize("module", [each for each in MODULES if not each.is_relative_to(STORAGE)], ids=str)
def test_nobody_asks_which_kind_of_storage_it_has(module: Path) -> None:
    """A capability is asked for by its name, and is None where the storage lacks it."""
    asked = set()
    tree = parsed(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and names_in(node.func) & {"isinstance", "issubclass"}:
            asked |= names_in(node.args[1])
        elif isinstance(node, ast.MatchClass):
            asked |= names_in(node.cls)
    assert not asked & STORAGE_CLASSES
    assert "PosixStorage" not in names_in(tree), "storage.storage_opening opens roots and directories"
