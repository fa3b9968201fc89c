"""Nothing that dynbench reads can run code: no call in the package could, and a planted one is found.

What ruff's rules of security find (`eval`, `exec`, shells) is left to `make lint`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dynbench

PACKAGE = Path(dynbench.__file__).parent
LOADERS_OF_CODE = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle")
MUST = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False)}
"""A function to the argument that it has to be given, because its default may change or has."""
HUB = ("from_pretrained", "from_config")
LOADS = ("load", "unsafe_load", "full_load")
UNSAFE_YAML = {
    f"yaml.{name}" for name in ("Loader", "UnsafeLoader", "FullLoader", *LOADS, *(f"{n}_all" for n in LOADS))
}


def risks(source: str) -> Iterator[str]:
    """`line: what` of everything in a source by which a file could run code."""
    for node in ast.walk(ast.parse(source)):
        for text in _risks(node):
            yield f"{getattr(node, 'lineno', 0)}: {text}"


def _risks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [".".join(filter(None, (getattr(node, "module", ""), one.name))) for one in node.names]
        yield from (name for name in names if name.split(".")[0] in LOADERS_OF_CODE and not name.endswith("Error"))
    elif isinstance(node, ast.Attribute) and ast.unparse(node) in UNSAFE_YAML:
        yield ast.unparse(node)
    elif isinstance(node, ast.Call):
        given = {word.arg: word.value.value if isinstance(word.value, ast.Constant) else word for word in node.keywords}
        called = ast.unparse(node.func)
        argument, value = MUST.get(called, ("trust_remote_code", False))
        needed = called in MUST or called.rpartition(".")[2] in HUB or argument in given
        if called == "torch.hub.load" or (needed and given.get(argument) is not value):
            yield f"{called} without {argument}={value}"


def test_no_file_of_the_package_loads_what_could_run() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files and {str(file): found for file in files if (found := [*risks(file.read_text(encoding="utf-8"))])} == {}


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
        "yaml.unsafe_load(text)",
        "loader = yaml.Loader",
        "yaml.compose(text, yaml.UnsafeLoader)",
        "transformers.AutoTokenizer.from_pretrained(name)",
        "AutoModel.from_config(config, trust_remote_code=True)",
        "AutoModel.from_config(config, trust_remote_code=asked)",
        "datasets.load_dataset(name, trust_remote_code=True)",
        "torch.hub.load(repository, model)",
    ],
)
def test_what_is_planted_is_found(planted: str) -> None:
    assert list(risks(f"def read(path):\n    {planted}\n"))
