"""Nothing that dynbench reads can run code: no call in the package could, and a planted one is found."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynbench

PACKAGE = Path(dynbench.__file__).parent
LOADERS_OF_CODE = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle")
UNSAFE_YAML = ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")
SAFE_LOADERS = ("_FastLoader", "_CoreLoader")
"""Subclasses of SafeLoader and CSafeLoader, of config/yaml_strict.py."""
MUST = {
    ("torch", "load"): ("weights_only", True),
    ("np", "load"): ("allow_pickle", False),
    ("numpy", "load"): ("allow_pickle", False),
}
"""A function to the argument that it has to be given, because its default may change or has."""
HUB = ("from_pretrained", "from_config")
NEVER = {("os", "system"), ("os", "popen"), ("hub", "load"), ("yaml", "Loader"), ("yaml", "UnsafeLoader")}
BUILT_IN = ("eval", "exec", "compile")


def risks(source: str) -> Iterator[str]:
    """`line: what` of everything in a source by which a file could run code."""
    for node in ast.walk(ast.parse(source)):
        for text in _risks(node):
            yield f"{getattr(node, 'lineno', 0)}: {text}"


def _risks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"import {alias.name}" for alias in node.names if alias.name.split(".")[0] in LOADERS_OF_CODE)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LOADERS_OF_CODE:
        yield from (f"from {node.module} import {one.name}" for one in node.names if not one.name.endswith("Error"))
    elif isinstance(node, ast.Attribute) and (_last(node.value), node.attr) in NEVER:
        yield f"{_last(node.value)}.{node.attr}"
    elif isinstance(node, ast.Call):
        yield from _risks_of_call(node)


def _risks_of_call(node: ast.Call) -> Iterator[str]:
    given = {word.arg: word.value for word in node.keywords}
    if isinstance(node.func, ast.Name) and node.func.id in BUILT_IN:
        yield f"{node.func.id}()"
    if _value(given.get("shell")) not in (None, False) or _value(given.get("trust_remote_code")) not in (None, False):
        yield "shell or trust_remote_code"
    if not isinstance(node.func, ast.Attribute):
        return
    whose, name = _last(node.func.value), node.func.attr
    if (whose, name) in MUST:
        argument, value = MUST[whose, name]
        if _value(given.get(argument)) is not value:
            yield f"{whose}.{name} without {argument}={value}"
    if whose == "yaml" and name in UNSAFE_YAML:
        yield f"yaml.{name}"
    if (
        whose == "yaml"
        and name in ("compose", "parse")
        and len(node.args) > 1
        and _last(node.args[1]) not in SAFE_LOADERS
    ):
        yield f"yaml.{name} with {_last(node.args[1])}"
    if name in HUB and _value(given.get("trust_remote_code")) is not False:
        yield f"{name} without trust_remote_code=False"


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.AST | None) -> object:
    """The constant that is given; None for nothing, the node itself for what is no constant."""
    return node.value if isinstance(node, ast.Constant) else node


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_of_the_package_loads_what_could_run(file: Path) -> None:
    assert list(risks(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import shelve as s",
        "from pickle import Unpickler",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.SafeLoader)",
        "yaml.unsafe_load(text)",
        "loader = yaml.Loader",
        "yaml.compose(text, yaml.UnsafeLoader)",
        "transformers.AutoTokenizer.from_pretrained(name)",
        "AutoModel.from_config(config, trust_remote_code=True)",
        "AutoModel.from_config(config, trust_remote_code=asked)",
        "datasets.load_dataset(name, trust_remote_code=True)",
        "torch.hub.load(repository, model)",
        "eval(text)",
        "exec(compile(text, name, 'exec'))",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_what_is_planted_is_found(planted: str) -> None:
    assert list(risks(f"def read(path):\n    {planted}\n"))


@pytest.mark.parametrize(
    "fine",
    [
        "from pickle import UnpicklingError",
        "torch.load(path, weights_only=True)",
        "np.load(path, mmap_mode='r', allow_pickle=False)",
        "yaml.safe_load(text)",
        "yaml.compose(text, _FastLoader)",
        "AutoConfig.from_pretrained(name, trust_remote_code=False)",
        "model.eval()",
        "re.compile(text)",
    ],
)
def test_what_runs_nothing_is_let_be(fine: str) -> None:
    assert not list(risks(f"{fine}\n"))
