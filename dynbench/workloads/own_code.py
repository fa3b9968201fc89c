"""Where a workload of the user's own is: found, read and digested without running any of it, or importing torch."""

from __future__ import annotations

import ast
import hashlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dynbench.config.recipes import recipes_dir
from dynbench.config.schema import Workload
from dynbench.errors import UsageError, did_you_mean

KEY = "workload.name"
PROTOCOL = "dynbench/workloads/base.py documents the protocol, recipes/length_regression.py is an example."
METHODS = {
    "build_model": "build_model(self, seed)",
    "collate": "collate(self, data, ids, width)",
    "loss": "loss(self, model, batch)",
}
"""Methods that every workload has, and how they are called."""
_DYNBENCH = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class OwnCode:
    """A class of the user's own.

    Args:
        name: `workload.name`.
        folder: what `module` or the file is looked for in; on the path of imports when it is loaded.
        module: dotted module; None where a file is named.
        file: the file that defines the class.
        attribute: the class's name.
        digest: of the file, 16 hex digits.
    """

    name: str
    folder: Path
    module: str | None
    file: Path
    attribute: str
    digest: str

    @property
    def home(self) -> Path:
        """The folder whose files count as the user's code."""
        return self.file.parent if self.module is None else self.folder / Path(*self.module.split(".")[:-1])

    def holds(self, filename: str) -> bool:
        """Whether a file is part of the user's code, and not of dynbench or a package installed below it."""
        path, home = Path(filename), self.home
        if path == self.file or path.suffix != ".py" or not path.is_relative_to(home):
            return path == self.file
        installed = {"site-packages", "dist-packages"} & {home.name, *path.relative_to(home).parts}
        return not installed and not path.is_relative_to(_DYNBENCH)

    def where(self, error: BaseException) -> str | None:
        """`file.py:12` of the innermost line of the user's code that an error passed; None where it passed none."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if self.holds(frame.filename)]
        if isinstance(error, SyntaxError) and error.filename and self.holds(error.filename):
            return f"{Path(error.filename).name}:{error.lineno}"
        return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None


def find_own_code(settings: Workload) -> OwnCode:
    """The class that `workload.name` means.

    Raises:
        UsageError: no such module, file or class, a file that is no Python, a class without the protocol's methods, or
            a file that has changed since `workload.code_digest` was written.
    """
    where, _, attribute = settings.name.rpartition(":")
    is_file = where.endswith(".py")
    folder, file = _find_file(settings, where) if is_file else _find_module(settings, where)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{KEY}: {settings.name}: {file}: {error.strerror}", "Name a file that can be read.") from None
    code = OwnCode(
        name=settings.name,
        folder=folder,
        module=None if is_file else where,
        file=file,
        attribute=attribute,
        digest=content_digest(content),
    )
    if settings.code_digest not in (None, code.digest):
        raise UsageError(
            f"workload.code_digest: {settings.code_digest}, but {file} is {code.digest}: it has changed since",
            "Bring that version back. With code_digest null it runs as it is, not comparable with what ran before.",
        )
    _check_class(code, content)
    return code


def own_code_settings(settings: Workload) -> dict[str, object]:
    """Folder and digest of a workload of the user's own, as its configuration keeps them; empty for the registry's.

    Raises:
        UsageError: as `find_own_code`.
    """
    if not settings.is_own:
        return {}
    code = find_own_code(settings)
    return {"import_from": str(code.folder), "code_digest": code.digest}


def missing_methods(name: str, missing: Sequence[str]) -> UsageError:
    """What to say of a class without some of the protocol."""
    return UsageError(f"{KEY}: {name} lacks {', '.join(missing)}", PROTOCOL)


def content_digest(content: bytes) -> str:
    """First 16 hex digits of a file's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


def _folders(settings: Workload) -> list[Path]:
    if settings.import_from is not None:
        return [Path(settings.import_from).expanduser().resolve()]
    return [Path.cwd(), recipes_dir()]


def _find_file(settings: Workload, where: str) -> tuple[Path, Path]:
    path = Path(where).expanduser()
    folders = [path.parent] if path.is_absolute() else _folders(settings)
    for folder in folders:
        file = path if path.is_absolute() else folder / path
        if file.is_file():
            return folder, file
    nearest = did_you_mean(path.name, (other.name for other in (folders[0] / path).parent.glob("*.py")))
    raise UsageError(
        f"{KEY}: no file {where} in {folders[0]}. {nearest}".rstrip(),
        "Start in the folder that the path is relative to, or set workload.import_from.",
    )


def _find_module(settings: Workload, where: str) -> tuple[Path, Path]:
    folders = _folders(settings)
    for folder in folders:
        if file := _module_file(folder, where):
            return folder, file
    installed = None if settings.import_from else _installed_folder(where.partition(".")[0])
    if installed and (file := _module_file(installed, where)):
        return installed, file
    top = where.partition(".")[0]
    here = [path.stem for path in folders[0].glob("*.py")] + [path.parent.name for path in folders[0].glob("*/*.py")]
    places = str(folders[0]) if settings.import_from else f"{folders[0]} or among the installed packages"
    raise UsageError(
        f"{KEY}: no module {where} in {places}. {did_you_mean(top, here)}".rstrip(),
        "Start in the folder that holds it, or set workload.import_from; a file is named like my_file.py:Class.",
    )


def _module_file(folder: Path, module: str) -> Path | None:
    base = folder.joinpath(*module.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def _installed_folder(top: str) -> Path | None:
    """The folder that an installed top-level module is in; nothing of it is run."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    locations = spec.submodule_search_locations
    if locations:
        return Path(next(iter(locations))).parent
    return Path(spec.origin).parent if spec.has_location and spec.origin else None


def _check_class(code: OwnCode, content: bytes) -> None:
    """What the file's text alone tells of the class: names that it imports or makes are left to the import."""
    try:
        tree = ast.parse(content, str(code.file))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{KEY}: {code.file}{line}: no valid Python: {reason}", "Mend that line.") from None
    classes, others = {}, set[str]()
    for node in _statements(tree):
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        else:
            others |= _bound(node)
    found = classes.get(code.attribute)
    if found is None:
        if {code.attribute, "*", "__getattr__"} & others:
            return
        nearest = did_you_mean(code.attribute, classes)
        listed = f"Classes there: {', '.join(classes)}." if classes else "It has no class."
        raise UsageError(f"{KEY}: {code.file} has no class {code.attribute}. {nearest}".rstrip(), listed)
    if not (found.bases or found.decorator_list or found.keywords):
        named = {name for node in found.body for name in _bound(node)}
        missing = [call for method, call in METHODS.items() if method not in named]
        if missing:
            raise missing_methods(code.name, missing)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, also those in its top-level `if`, `try` and `with`."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.If | ast.Try | ast.With):
            pending[:0] = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        elif isinstance(node, ast.stmt):
            yield node


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
