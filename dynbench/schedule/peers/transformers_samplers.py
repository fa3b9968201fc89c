"""The samplers of the installed transformers, imported when a policy that uses one is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dynbench.errors import UsageError
from dynbench.schedule.policy import Problem


def accumulation_steps(problem: Problem) -> int:
    """Micro-batches per rank, the Trainer's `gradient_accumulation_steps`; 1 for auto: these know no capacities."""
    return 1 if problem.micro_batches == "auto" else problem.micro_batches


def sampler_class(policy: str, name: str) -> Any:
    """A class of `transformers.trainer_pt_utils`; untyped, as its module is.

    Raises:
        UsageError: transformers or torch is missing, or this transformers has no such sampler.
    """
    try:
        import_module("torch")
        module = import_module("transformers.trainer_pt_utils")
    except ImportError as error:
        reason = f"{policy} needs transformers and torch ({error})"
        raise UsageError(reason, "pip install transformers torch") from error
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"{policy}: the installed transformers has no {name}", "Install transformers 5.23 or later.")
    return found
