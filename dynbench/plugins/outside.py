"""Code from outside dynbench: files found, read and digested without running any of it; plug-ins, which are loaded.

Plug-ins are the files and modules of `DYNBENCH_PLUGINS`, and the modules that installed packages declare as entry
points of the group `dynbench.plugins`. They are imported once in every process.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from dynbench.errors import DynbenchError, UsageError, did_you_mean

_DYNBENCH = Path(__file__).resolve().parent.parent
VARIABLE = "DYNBENCH_PLUGINS"
GROUP = "dynbench.plugins"
targets: list[object] = []
"""Those of all entries, in the order of registration."""
_loading = False

# Files ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A module or file of the user's own.

    Args:
        key: the setting that names it.
        folder: what the module or the file is looked for in; on the path of imports when it is loaded.
        module: dotted module; None where a file is named.
        file: the file.
        digest: of the file, 16 hex digits.
    """

    key: str
    folder: Path
    module: str | None
    file: Path
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

    def load(self) -> ModuleType:
        """Import it, the folder that it was found in first on the path, as Python has it of a program.

        Raises:
            UsageError: another module of that name has been imported already.
        """
        folder = str(self.folder if self.module is not None else self.file.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if self.module is not None:
            module = importlib.import_module(self.module)
            if module.__file__ is None or Path(module.__file__).resolve() != self.file.resolve():
                raise UsageError(
                    f"{self.key}: {self.module} is also the name of {module.__file__}, which was imported first",
                    "Rename yours, or name it by its file, my_file.py.",
                )
            return module
        name = self.file.stem if self.file.stem not in sys.modules else f"dynbench_own_{self.file.stem}"
        spec = spec_from_file_location(name, self.file)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = sys.modules[name] = module_from_spec(spec)  # dataclasses and pickle look a class's module up there
        spec.loader.exec_module(module)
        return module


def find_code(key: str, where: str, folders: Sequence[Path], way_out: str, *, installed: bool = True) -> Code:
    """The file that a module or a path means.

    Args:
        key: the setting that names it, with its value.
        where: dotted module, or a path that ends in .py.
        folders: what it is looked for in, in order.
        way_out: what else to do where it is not found.
        installed: look for a module among the installed packages too.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    is_file, path = where.endswith(".py"), Path(where).expanduser()
    if is_file and path.is_absolute():
        folders = [path.parent]
    found = next(((folder, file) for folder, file in _places(where, folders, installed) if file.is_file()), None)
    if found is None:
        first, top = folders[0], where.partition(".")[0]
        if is_file:
            missing, known = f"no file {where} in {first}", [other.name for other in (first / path).parent.glob("*.py")]
            hint = f"Start in the folder that the path is relative to, or {way_out}."
        else:
            missing = f"no module {where} in {first}{' or among the installed packages' if installed else ''}"
            known = [other.stem for other in first.glob("*.py")] + [other.parent.name for other in first.glob("*/*.py")]
            hint = f"Start in the folder that holds it, or {way_out}; a file is named like my_file.py."
        raise UsageError(f"{key}: {missing}. {did_you_mean(path.name if is_file else top, known)}".rstrip(), hint)
    folder, file = found
    try:
        digest = content_digest(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{key}: {where}: {file}: {error.strerror}", "Name a file that can be read.") from None
    return Code(key, folder, None if is_file else where, file, digest)


def _places(where: str, folders: Sequence[Path], installed: bool) -> Iterator[tuple[Path, Path]]:
    """Where a file or module may be, in order: the folder that it is looked for in, and the file."""
    if where.endswith(".py"):
        yield from ((folder, folder / Path(where).expanduser()) for folder in folders)
        return
    package = _installed_folder(where.partition(".")[0]) if installed else None
    for folder in [*folders, *filter(None, [package])]:
        base = folder.joinpath(*where.split("."))
        yield from ((folder, file) for file in (base.with_suffix(".py"), base / "__init__.py"))


def own_folders() -> list[Path]:
    """Where code of the user's own is looked for: the current folder, then that of the shipped recipes."""
    return [Path.cwd(), recipes_dir()]


def recipes_dir() -> Path:
    """The folder of the shipped recipes: in the package when installed from a wheel, else the checkout's `recipes/`."""
    package = Path(str(resources.files("dynbench")))
    installed = package / "_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def content_digest(content: bytes) -> str:
    """First 16 hex digits of a file's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


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


# Plug-ins -------------------------------------------------------------------------------------------------------------


def load_all() -> None:
    """Import them, so that they register themselves.

    Raises:
        UsageError: a file that is not there, or whose code raised an error.
    """
    global _loading
    if _loading:  # the files read the registries that they add to
        return
    _loading = True
    try:
        found = _load_once()
    finally:
        _loading = False
    if isinstance(found, UsageError):
        raise found


def digests() -> dict[str, str]:
    """Module or file name of each to a digest of it and of the modules that its entries name."""
    load_all()
    found = _load_once()
    return {} if isinstance(found, UsageError) else {code.module or code.file.name: code.digest for code in found}


def or_your_own() -> str:
    """What follows the names that are known where the variable names no file: how to add one's own."""
    return "" if os.environ.get(VARIABLE) else f"; a plug-in of your own: name its file in {VARIABLE}"


def where(error: BaseException) -> str | None:
    """`file.py:12` of the innermost line of plug-ins from outside that an error passed; None where it passed none."""
    found = () if _loading else _load_once()
    places = [] if isinstance(found, UsageError) else [code.where(error) for code in found]
    return next(filter(None, places), None)


@cache
def _load_once() -> tuple[Code, ...] | UsageError:
    """The files in order, or why one of them cannot be used: what registered itself cannot do so again."""
    named = dict.fromkeys(filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))), VARIABLE)
    for point in entry_points(group=GROUP):
        named.setdefault(point.value, f"entry point {point.name} of {GROUP}")
    try:
        return tuple(_load(key, place) for place, key in named.items())
    except UsageError as error:
        return error


def _load(key: str, named: str) -> Code:
    code = find_code(key, named, own_folders(), "give its whole path")
    before = len(targets)
    try:
        code.load()
    except DynbenchError as error:
        raise UsageError(f"{key}: {code.where(error) or code.file.name}: {error.message}", error.hint) from error
    except Exception as error:  # the user's own code, which may raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"{key}: {code.where(error) or code.file.name}: {type(error).__name__}: {reason}",
            f"Mend that line, or leave the file out of {VARIABLE}."
            if key == VARIABLE
            else "Mend that line, or uninstall its package.",
        ) from error
    return replace(code, digest=content_digest(b"".join(_contents(code, targets[before:]))))


def _contents(code: Code, registered: Sequence[object]) -> Iterator[bytes]:
    """Of a file and of the modules that its entries name; one that is not there is reported when it is used."""
    yield code.file.read_bytes()
    for module in dict.fromkeys(target.partition(":")[0] for target in registered if isinstance(target, str)):
        with suppress(UsageError):
            file = find_code(VARIABLE, module, [code.file.parent, code.folder], "").file
            if code.holds(str(file)) and file != code.file:
                yield file.read_bytes()
