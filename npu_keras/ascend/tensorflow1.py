# SPDX-License-Identifier: Apache-2.0
"""Scripts for TensorFlow 1: `tf` is `tf.compat.v1` in them, and nothing happens eagerly."""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import re
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npu_keras._upstream import silence_deprecations

_PLAIN, _V1 = "tensorflow", "tensorflow.compat.v1"
_GRAPH_ONLY = {"Session", "InteractiveSession", "placeholder"}
_SWITCHES = {
    *("disable_eager_execution", "disable_v2_behavior"),
    *("enable_eager_execution", "enable_v2_behavior"),
}
_MOST_FILES = 200

GONE = {
    "contrib": "`tf.contrib` ended with TensorFlow 1. Its layers are in `tf.compat.v1.layers` and "
    "in the package `tf_slim`; its loss scaling is that of `npu_bridge` here.",
    "estimator": "TensorFlow has had no `tf.estimator` since 2.16. Train with a session, for "
    "example `tf.train.MonitoredTrainingSession`, or with Keras.",
}
"""Parts of TensorFlow 1 that nothing can stand for, and what to do."""


def is_for_tensorflow_1(script: Path) -> bool:
    """Whether a script, or a file beside it that it imports, is written for TensorFlow 1.

    It is if it asks `tensorflow` for names that only `tensorflow.compat.v1` has, or builds graphs
    by way of `tensorflow.compat.v1` without ever choosing between graphs and eager execution.

    Args:
        script: path of the script.
    """
    import tensorflow as tf

    gone = {*dir(tf.compat.v1), *GONE} - {*dir(tf)}
    trees = list(_local_trees(script))
    used = set().union(*(_used_of(tree, _PLAIN) for tree in trees))
    used_v1 = set().union(*(_used_of(tree, _V1) for tree in trees))
    names = {node.attr for t in trees for node in ast.walk(t) if isinstance(node, ast.Attribute)}
    return bool(used & gone) or bool(used_v1 & _GRAPH_ONLY and not names & _SWITCHES)


def choose_graphs() -> None:
    """Makes TensorFlow behave as TensorFlow 1 does; before the first tensor."""
    import tensorflow as tf

    silence_deprecations()  # half of what such a script calls
    tf.compat.v1.disable_v2_behavior()


def run(script: Path) -> None:
    """Runs a script as `__main__`, with `tf.compat.v1` for its `tensorflow`.

    Args:
        script: path of the script.
    """
    finder, before = _Finder(), sys.modules["__main__"]
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.meta_path.insert(0, finder)
    sys.modules["__main__"] = main
    try:
        exec(compile(_rewritten(script.read_bytes()), str(script), "exec"), vars(main))
    finally:
        sys.modules["__main__"] = before
        sys.meta_path.remove(finder)


def explain(error: Exception) -> None:
    """Adds to an error what to do about a part of TensorFlow 1 that is gone.

    Args:
        error: an AttributeError or ImportError of the script.
    """
    for name in sorted({*re.findall(r"\w+", str(error))} & GONE.keys()):
        error.add_note(GONE[name])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that belong to the script, and reads them as the script is read."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader = spec and spec.loader
        if spec is None or type(loader) is not importlib.machinery.SourceFileLoader:
            return None
        if not _is_of_the_user(Path(loader.path)):
            return None
        spec.loader = _Loader(fullname, loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        # Not by way of the cache, which belongs to the file as it is.
        return compile(_rewritten(self.get_data(self.path)), self.path, "exec")


class _Rewriter(ast.NodeTransformer):
    def visit_Import(self, node: ast.Import) -> ast.Import:
        for alias in node.names:
            if alias.name == _PLAIN:
                alias.asname, alias.name = alias.asname or _PLAIN, _V1
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.module == _PLAIN and node.level == 0:
            node.module = _V1
        return node


def _rewritten(source: bytes) -> ast.Module:
    return ast.fix_missing_locations(_Rewriter().visit(ast.parse(source)))


def _is_of_the_user(path: Path) -> bool:
    path = path.resolve()
    installed = {*sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
    return not {"site-packages", "dist-packages"} & {*path.parts} and not any(
        path.is_relative_to(Path(folder).resolve())
        for folder in installed - {sysconfig.get_path("data"), sysconfig.get_path("scripts")}
    )


def _used_of(tree: ast.Module, module: str) -> set[str]:
    """The names that a file asks a module for."""
    aliases, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname or a.name for a in node.names if a.name == module}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            used |= {a.name for a in node.names if node.module == module}
            full = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            aliases |= {alias for alias, name in full.items() if name == module}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            used.add(node.attr)
    return used


def _local_trees(script: Path) -> Iterator[ast.Module]:
    """The script, and the files below its folder that it imports."""
    seen: set[Path] = set()
    waiting = [script.resolve()]
    folder = script.resolve().parent
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        tree = ast.Module([], [])
        with contextlib.suppress(SyntaxError):  # the script may never import it
            tree = ast.parse(path.read_bytes())
        yield tree
        for name in _imported(tree):
            for base in {folder, path.parent}:
                stem = base.joinpath(*name.split("."))
                waiting += [stem.with_suffix(".py"), stem / "__init__.py"]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield from (f"{prefix}{alias.name}" for alias in node.names)
            if node.module:
                yield node.module
