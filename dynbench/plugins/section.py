"""What configuration sections and the options of plug-ins are made of."""

from __future__ import annotations

from inspect import get_annotations
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

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
    refused: ClassVar[bool] = False
    """Whether rules refuse the options that a class declares where the chosen plug-in does not have them."""

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
