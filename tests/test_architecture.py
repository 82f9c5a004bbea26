"""The house keeps its shape: imports point one way, and every room stays small."""

import ast
from pathlib import Path

import pytest

import moesim

ROOT = Path(moesim.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ROOMS = [
    "types",
    "errors",
    "streams",
    "units",
    "spec",
    "routing",
    "workload",
    "cost",
    "policy",
    "measure",
    "diagnose",
    "engine",
    "scenario",
    "plot",
    "replicate",
    "contest",
    "workers",
    "simulate",
    "study",
    "cli",
]
ENTRANCES = {"__init__", "__main__"}
"""The package's own door may open on every room."""
ONLY_IN = {
    "simpy": {"engine"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"plot"},
}
HEAVY = {"pandas", "scipy", "pyarrow", "matplotlib"}
LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 300, 40, 6

every_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(ROOT))
)


def room_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def run_time_imports(tree):
    """Yield what is imported when the module is, not inside functions or for types."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)


def functions(tree):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def is_command(function):
    """Tell whether a function is a command, whose parameters are its options."""
    names = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(name.startswith("app.") for name in names)


def lines_without_docstring(function):
    first = function.body[0]
    doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno if doc and len(function.body) > 1 else function.lineno
    return function.end_lineno - start


def test_every_room_is_in_the_list():
    assert {room_of(path) for path in FILES} - ENTRANCES == set(ROOMS)


@every_file
def test_imports_point_one_way(path):
    """A room imports only itself and the rooms before it."""
    room = room_of(path)
    if room in ENTRANCES:
        return
    for module in imports(ast.parse(path.read_text())):
        top, *rest = module.split(".")
        if top == "moesim" and rest:
            assert ROOMS.index(rest[0]) <= ROOMS.index(room), module


@every_file
def test_libraries_stay_in_their_rooms(path):
    """Only the engine knows SimPy, only the command line prints, only plots draw."""
    tree = ast.parse(path.read_text())
    room = room_of(path)
    typing_only = {"matplotlib"} if room == "measure" else set()

    for module in imports(tree):
        top = module.split(".")[0]
        if top not in typing_only:
            assert room in ONLY_IN.get(top, {room}), module
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    assert "print" not in names or room == "cli"


@every_file
def test_heavy_libraries_wait_until_they_are_used(path):
    """The command line answers at once: pandas and its like are imported late."""
    if room_of(path) != "plot":
        tops = {m.split(".")[0] for m in run_time_imports(ast.parse(path.read_text()))}

        assert not tops & HEAVY


@every_file
def test_a_file_fits_in_a_head(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@every_file
def test_a_function_does_one_thing(path):
    for function in functions(ast.parse(path.read_text())):
        names = [a.arg for a in function.args.posonlyargs + function.args.args]
        own = [name for name in names if name not in ("self", "cls")]

        if not is_command(function):
            assert lines_without_docstring(function) <= LONGEST_FUNCTION, function.name
            assert len(own) <= MOST_PARAMETERS, function.name


@every_file
def test_vague_names_stay_out(path):
    tree = ast.parse(path.read_text())
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]

    vague = ("Manager", "Base", "Util", "Helper")
    assert not [name for name in classes if name.endswith(vague)]


def test_public_names_are_documented():
    kinds = ast.FunctionDef | ast.ClassDef
    for path in FILES:
        tree = ast.parse(path.read_text())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in [*tree.body, *(part for kind in classes for part in kind.body)]:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name}"
