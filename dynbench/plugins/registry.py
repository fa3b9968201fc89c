"""What every kind of plug-in is listed by: a name, a line of description, where its class is, and its options.

Nothing of a plug-in is imported to list it, to validate its options or to say which of them are read. Plug-ins from
outside are loaded before any registry is first read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dynbench.errors import UsageError, unknown_name
from dynbench.plugins import outside

MOST = 2**31 - 1
"""Largest whole number of a setting, which columns and libraries hold in 32 bits."""
PositiveInt = Annotated[int, Field(gt=0, le=MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
MOST_SEED = 2**62
"""Seeds of launches are counted up from the first, within 64 bits."""
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
RankCount = Annotated[int, Field(gt=0, le=65_536)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Auto = Literal["auto"]


class Section(BaseModel):
    """Base of the sections and of a plug-in's options: immutable, unknown keys refused, values never coerced."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def declarer(cls, option: str) -> type[Section]:
        """The class in which a field is written down."""
        sections = (kind for kind in cls.__mro__ if issubclass(kind, Section))
        return next(kind for kind in sections if option in get_annotations(kind))


Options = TypeVar("Options", bound=Section)


def options_of(section: object, options: type[Options]) -> Options:
    """The options of a plug-in as its section holds them, beside what others read.

    Args:
        section: a section of the configuration; None gives the defaults.
        options: what the plug-in was registered with, or a base of it.
    """
    if section is None:
        return options()
    return options.model_construct(**{name: getattr(section, name) for name in options.model_fields})


def _imported(place: str) -> Any:
    """What `module:attribute` means."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


_NAME = re.compile(r"[a-z][a-z0-9_]*(\+[a-z][a-z0-9_]*)*")


@dataclass(frozen=True)
class Entry:
    """One plug-in.

    Args:
        name: what chooses it.
        summary: one line.
        target: `module:attribute`, imported when it is used; of a plug-in from outside, also the class itself.
        options: its own settings, each with a description; they stand flat in the section that chooses it. Plug-ins of
            a section share an option where both inherit it from the same class.
        needs: a package that must be importable, if any.
    """

    name: str
    summary: str
    target: str | Callable[..., Any]
    options: type[Section] = Section
    needs: str | None = None
    base: ClassVar[str] = ""
    """Where the class is that those of the kind are subclasses of; empty where it has none."""

    def load(self) -> Any:
        """What `target` means.

        Raises:
            UsageError: a plug-in from outside that cannot be imported, or is not what its kind asks for.
        """
        if not isinstance(self.target, str):
            return self._checked(self.target)
        if self.target.startswith("dynbench."):
            return _imported(self.target)
        try:
            found = _imported(self.target)
        except Exception as error:  # the code of a module from outside
            place = outside.where(error)
            reason = f"{place}: {type(error).__name__}: {error}" if place else str(error)
            raise UsageError(f"plug-in {self.name}: {self.target}: {reason}", "Mend that file.") from error
        return self._checked(found)

    def _checked(self, found: Any) -> Any:
        """What was found, refused where it is no subclass of `base`, or lacks a part that has to be there."""
        if not callable(found):
            raise UsageError(f"plug-in {self.name}: {found!r} cannot be called", f"Expected: {type(self).__doc__}")
        if self.base:
            base = _imported(self.base)
            documented = f"{base.__module__} documents it."
            if not (isinstance(found, type) and issubclass(found, base)):
                raise UsageError(f"plug-in {self.name}: {found!r} is no subclass of {base.__name__}", documented)
            lacks = [
                *sorted(getattr(found, "__abstractmethods__", ())),
                *(key for key, kind in get_annotations(base).items() if "ClassVar" in kind and not hasattr(found, key)),
            ]
            if lacks:
                raise UsageError(f"plug-in {self.name}: {found.__qualname__} lacks {', '.join(lacks)}", documented)
        return found

    @property
    def missing(self) -> str | None:
        """Why it cannot be used here, when a package that it needs is not installed."""
        absent = self.needs is not None and find_spec(self.needs) is None
        return f"needs the package {self.needs}, which is not installed" if absent else None

    def reads(self, option: str) -> bool:
        """Whether it has this option."""
        return option in self.options.model_fields


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E]):
    """The plug-ins of one kind by name, in the order of their registration.

    Args:
        kind: what one of them is called.
        key: the dotted key that chooses one; empty where no setting does.
        entries: those of dynbench.
        shared: options that the section has even where no plug-in reads them.
    """

    def __init__(self, kind: str, key: str, entries: Iterable[E], shared: type[Section] = Section) -> None:
        self.kind, self.key, self.shared = kind, key, shared
        self.entries: dict[str, E] = {}
        self._in_use = False
        for entry in entries:
            self.add(entry)
        self.ours = frozenset(self.entries)

    @property
    def section(self) -> str:
        """The section that the options stand in."""
        return self.key.partition(".")[0]

    def __getitem__(self, name: str) -> E:
        outside.load_all()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        outside.load_all()
        return iter(self.entries)

    def __len__(self) -> int:
        outside.load_all()
        return len(self.entries)

    def find(self, name: str, beside: Sequence[str] = ()) -> E:
        """The plug-in of a name.

        Args:
            name: of a plug-in.
            beside: what may stand in its place, for the message.

        Raises:
            UsageError: unknown, with the nearest spelling.
        """
        if name not in self:
            what = f"{self.key or self.kind}: {name!r} is not a {self.kind}"
            raise unknown_name(what, name, (*self, *beside), end=outside.or_your_own())
        return self[name]

    def name_of(self, found: type[object]) -> str:
        """The name that a class is registered under; else that of the class."""
        targets = (found, f"{found.__module__}:{found.__qualname__}")
        return next((name for name, entry in self.items() if entry.target in targets), found.__name__)

    def readers(self, option: str) -> list[str]:
        """Names of the plug-ins that have an option."""
        return [name for name, entry in self.items() if entry.reads(option)]

    def options(self) -> dict[str, type[Section]]:
        """Every option of the kind, with a class that has it."""
        found: dict[str, type[Section]] = {}
        for options in (*(entry.options for entry in self.values()), self.shared):
            for option in options.model_fields:
                found.setdefault(option, options)
        return found

    def options_from_outside(self) -> dict[str, type[Section]]:
        """The options that no plug-in of dynbench has."""
        ours = (self.entries[name].options for name in self.ours)
        known = {option for options in (self.shared, *ours) for option in options.model_fields}
        return {option: options for option, options in self.options().items() if option not in known}

    def add(self, entry: E) -> None:
        """One more plug-in.

        Raises:
            UsageError: a name that is taken or none, an option without a default, or one that another plug-in declares
                otherwise.
        """
        what, options = f"{self.kind} {entry.name!r}", entry.options.model_fields
        if _NAME.fullmatch(entry.name) is None:
            raise UsageError(f"{what}: no name", "Use lower-case letters, digits and _.")
        if entry.name in self.entries:
            raise UsageError(f"{what}: the name is taken", f"Known: {', '.join(self.entries)}.")
        if self._in_use:
            raise UsageError(
                f"{what}: registered after the configuration was first read", f"Name its file in {outside.VARIABLE}."
            )
        for option in (option for option, info in options.items() if info.is_required()):
            raise UsageError(
                f"{what}: option {option} has no default",
                "Give it one: the option is there too where another plug-in is chosen.",
            )
        others = {name: other.options for name, other in self.entries.items()} | {f"every {self.kind}": self.shared}
        for name, other in others.items():
            for option in options.keys() & other.model_fields.keys():
                if other.declarer(option) is not entry.options.declarer(option):
                    raise UsageError(
                        f"{what}: option {option} is one of {name} too, declared elsewhere",
                        "Inherit it from the class that declares it, or call it otherwise.",
                    )
        self.entries[entry.name] = entry
        outside.targets.append(entry.target)

    def close(self) -> None:
        """From here on nothing more is registered."""
        outside.load_all()
        self._in_use = True


def with_options(**choices: Registry[Any]) -> Callable[[type[Options]], type[Options]]:
    """Gives a section of the configuration the options of its plug-ins.

    Args:
        choices: a field that chooses a plug-in to the registry of its kind, whose options are put behind it.
    """

    def assemble(section: type[Options]) -> type[Options]:
        fields = {}
        for name, info in section.model_fields.items():
            fields[name] = info
            registry = choices.get(name)
            if registry is None:
                continue
            registry.close()
            for option, options in registry.options().items():
                if option in section.model_fields or option in fields:
                    raise UsageError(
                        f"{registry.kind} {registry.readers(option)[0]!r}: option {option} is a setting of "
                        f"{registry.section} already",
                        "Call it otherwise.",
                    )
                fields[option] = options.model_fields[option]
        section.model_fields.clear()
        section.model_fields.update(fields)
        section.model_rebuild(force=True)
        return section

    return assemble
