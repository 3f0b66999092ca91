"""Who may import whom, read from the imports themselves.

    jobs/  ->  pipeline/  ->  storage_engine/ , schemas/

A package outside of this line, a name that another package does not offer in its `__all__`, or a module named after
nothing would be the first crack, and is easier to refuse than to repair.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ["jobs", "pipeline", "schemas", "storage_engine"]
FORBIDDEN = {
    "storage_engine": {"pyspark", "delta", "py4j", "schemas", "pipeline", "jobs", "tests"},
    "schemas": {"pyspark", "delta", "py4j", "storage_engine", "pipeline", "jobs", "tests"},
    "pipeline": {"jobs", "tests"},
    "jobs": {"tests"},
}
NAMED_AFTER_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "tools", "lib", "base"}

MODULES = sorted(path.relative_to(HOME) for package in PACKAGES for path in (HOME / package).rglob("*.py"))


def parsed(module: Path) -> ast.Module:
    return ast.parse((HOME / module).read_text(), filename=str(module))


def imports(module: Path) -> Iterator[tuple[str, list[str]]]:
    """Each imported module by its full name, with the names taken from it; those inside functions too."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(module.parent.parts[: len(module.parent.parts) - node.level + 1]) if node.level else []
            yield ".".join([*package, *filter(None, [node.module])]), [alias.name for alias in node.names]


def public_names(package: str) -> list[str] | None:
    """`__all__` of the package's __init__.py; None where it has none."""
    for node in parsed(Path(package, "__init__.py")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_imports_no_higher_layer(module: Path) -> None:
    imported = {name.split(".")[0] for name, _ in imports(module)}
    assert not imported & FORBIDDEN[module.parts[0]]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_has_a_name_that_says_something(module: Path) -> None:
    assert not {part.removesuffix(".py") for part in module.parts} & NAMED_AFTER_NOTHING


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
