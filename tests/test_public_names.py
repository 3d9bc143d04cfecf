"""The public names, and that no import binds over one of them."""

import ast
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import pipesim as ps


def test_every_name_is_there_and_stays_callable_after_all_imports():
    for module in pkgutil.walk_packages(ps.__path__, "pipesim."):
        needs_torch = module.name.startswith("pipesim.runtime") and find_spec("torch") is None
        if not module.name.endswith("__main__") and not needs_torch:
            importlib.import_module(module.name)
    for name in ps.__all__:
        value = getattr(ps, name)
        assert name == "plot" or callable(value), name
    assert set(ps.__all__) <= set(dir(ps))


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(ps.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        name.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert seen == set(ps.__all__)


def test_no_module_has_the_name_of_a_public_function():
    modules = {module.name.rpartition(".")[2] for module in pkgutil.walk_packages(ps.__path__)}
    assert modules & set(ps.__all__) == {"plot"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ps.nothing


def test_errors_are_caught_by_one_base_and_by_the_built_in_ones():
    assert issubclass(ps.ConfigError, (ps.PipesimError, ValueError))
    assert issubclass(ps.ScheduleError, (ps.PipesimError, ValueError))
    assert issubclass(ps.DeadlockError, (ps.PipesimError, RuntimeError))
    error = ps.ConfigError("file", ["a", "b"])
    assert str(error) == "file: a\nfile: b"
    assert error.faults == ("a", "b")
