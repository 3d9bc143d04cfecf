"""The house: rooms, sizes, names, and no circle of imports; the floors are import-linter's."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pipesim as ps

ROOT = Path(ps.__file__).parent
FILES = {
    ".".join(["pipesim", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): ast.parse(path.read_text("utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}
ROOMS = (
    "base",
    "cli",
    "config",
    "engine",
    "files",
    "pipeline",
    "plot",
    "report",
    "run",
    "runtime",
    "schedules",
    "studies",
)
# These hand public names on; cli lists the commands.
WITH_CODE = {"pipesim", "pipesim.plot", "pipesim.runtime", "pipesim.cli"}
MOST_LINES = 350


def imports(tree):
    """Yield the files of pipesim that a file imports: anywhere in it, for types alone, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                if whole in FILES:
                    yield whole
                elif node.module in FILES:
                    yield node.module


def test_no_file_imports_itself_through_others():
    graph = {name: set(imports(tree)) for name, tree in FILES.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises a CycleError if there is one
    assert set(order) == set(FILES)


def test_nothing_imports_the_root():
    for name, tree in FILES.items():
        assert "pipesim" not in set(imports(tree)) or name == "pipesim", name


def test_the_root_holds_twelve_rooms():
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__", "py.typed"}
    assert entries == {"__init__.py", "__main__.py", *ROOMS}


def test_only_those_that_hand_names_on_have_code_in_their_init():
    for path in ROOT.rglob("__init__.py"):
        name = ".".join(["pipesim", *path.parent.relative_to(ROOT).parts])
        body = FILES[name].body
        assert ast.get_docstring(FILES[name]), f"{name} says what it is for"
        assert len(body) == 1 or name in WITH_CODE, name


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in ROOT.rglob("*.py")
        if (lines := path.read_text("utf-8").count("\n")) > MOST_LINES
    }
    assert not long


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name
        for tree in FILES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_tests_mirror_the_rooms():
    tests = Path(__file__).parent
    folders = {p.name for p in tests.iterdir() if (p / "__init__.py").exists()}
    assert folders == set(ROOMS)
