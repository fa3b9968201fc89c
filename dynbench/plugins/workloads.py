"""The workloads: what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from dynbench.plugins.policies import LAYOUTS, Layout
from dynbench.plugins.registry import Auto, Entry, NonNegativeInt, Registry, Section

Kind = Literal["texts", "images", "digits"]
"""What samples are made of; `digits` are images of 28 by 28 grey pixels."""


@dataclass(frozen=True, slots=True)
class Size:
    """A shape that a workload's model has with random weights.

    Args:
        summary: what it is.
        positions: longest padded sample that it takes, tokens; None where only a configuration tells.
        imports: what making its model imports, where that is less than what the workload does.
    """

    summary: str
    positions: int | None
    imports: tuple[str, ...] = ()


OF_MODEL = "model"
"""The size of every workload that takes its shape from the configuration of `workload.model`."""


@dataclass(frozen=True)
class WorkloadEntry(Entry):
    """A class that follows the protocol of `dynbench.workloads.base.Workload`, called with the whole configuration.

    Args:
        sizes: the words of `workload.size` but `auto`, and what they mean; empty where it reads them itself.
        aliases: other words for some of them.
        auto_size: what `auto` means where `workload.model` is no folder with a config.json.
        tokenizer: of texts where neither a tokenizer is named nor a model's configuration read; None: the model's own.
        samples: what it learns from; data sets of another kind are refused.
        lengths: whose shipped lengths the data set `embedded` has; None where samples have no lengths: each counts as
            one token and costs as much as any other.
        names_model: `workload.model` has to be named where it is read, as its default is of another kind: an example.
        imports: what making a model of random weights imports.
        classes: it learns labels; without, data sets are read for their texts alone.
        drops: its models have dropout.
        batch_norm: its models normalise over the samples that run together, so that losses depend on who runs what.
        layouts: of the micro-batches that it makes.
    """

    sizes: Mapping[str, Size] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    auto_size: str = "small"
    tokenizer: str | None = None
    samples: Kind = "texts"
    lengths: str | None = "sst2"
    names_model: str = ""
    imports: tuple[str, ...] = ()
    classes: bool = True
    drops: bool = True
    batch_norm: bool = False
    layouts: tuple[Layout, ...] = ("padded",)

    def imports_of(self, shape: str) -> tuple[str, ...]:
        """What making a model of a shape with random weights imports."""
        size = self.sizes.get(shape)
        return self.imports if size is None else size.imports or self.imports


class ImageOptions(Section):
    """Of the workload that classifies images."""

    image_size: Annotated[int, Field(ge=16, le=65_536)] | Auto = "auto"
    """Side of the square that the model sees, pixels: the shorter side is resized to 8/7 of it, and its centre cut
    out. auto is what a pretrained model says of itself, in its folder or the hub's cache, else 224, of generated
    images 32."""
    workers: NonNegativeInt = 0
    """Threads of a rank that decode the images of its next step while it trains; 0 decodes within the step."""
    max_unreadable: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Largest part of the image files that may be unreadable; these are counted, named and left out."""


class LanguageOptions(Section):
    """Of the workload that models language."""

    use_cache: bool = False
    """With `layout` flattened only: the model makes its cache of keys and values in training, as its configuration says
    where nobody switches it off (transformers' Trainer does); GPT-2 then does not notice the samples of a row."""


_CONFIGURED = Size("that of the configuration of workload.model", None)
_GPT2_POSITIONS, _ROPE_POSITIONS = 1024, 2048
_AUTO = "transformers.models.auto.modeling_auto"
_GPT2, _LLAMA = (_AUTO, "transformers.models.gpt2.modeling_gpt2"), (_AUTO, "transformers.models.llama.modeling_llama")
_NO_LENGTHS = 1


def _rope(parameters: str, shape: str) -> Size:
    return Size(
        f"RMSNorm, RoPE and SwiGLU, {parameters} parameters: {shape} (width/inner/layers/heads)",
        _ROPE_POSITIONS,
        _LLAMA,
    )


def _ours(name: str, summary: str, target: str, sizes: Mapping[str, Size], **facts: Any) -> WorkloadEntry:
    listed = ", ".join(sizes)
    return WorkloadEntry(name, f"{summary}; sizes: {listed}", f"dynbench.workloads.{target}", sizes=sizes, **facts)


WORKLOADS: Registry[WorkloadEntry] = Registry(
    "workload",
    "workload.name",
    (
        _ours(
            "text_classification",
            "one label per text, cross entropy",
            "text_classification:TextClassification",
            {
                "small": Size("runs on a CPU too", 512),
                "base": Size("that of distilbert-base-uncased", 512),
                OF_MODEL: _CONFIGURED,
            },
            layouts=LAYOUTS,
            imports=("transformers.models.distilbert.modeling_distilbert",),
        ),
        _ours(
            "causal_lm",
            "the next token of a text, cross entropy over its target tokens",
            "causal_lm:CausalLanguageModel",
            {
                "tiny": Size("GPT-2's architecture with about 1 M parameters, for a CPU", _GPT2_POSITIONS, _GPT2),
                "gpt2-62m": Size(
                    "GPT-2's architecture with 62.4 M parameters; tiny is for a CPU", _GPT2_POSITIONS, _GPT2
                ),
                "small": _rope("0.129 B", "768/3072/12/12"),
                "medium": _rope("0.423 B", "1024/4096/24/16"),
                "large": _rope("0.969 B", "1280/5120/36/20"),
                "xl-2025": _rope("1.998 B", "1600/6400/48/25"),
                "xl-2026": _rope("3.407 B", "2560/10240/32/32"),
                OF_MODEL: _CONFIGURED,
            },
            options=LanguageOptions,
            aliases={"2.7B": "xl-2026"},
            auto_size="gpt2-62m",
            tokenizer="bytes",
            lengths="gsm8k",
            names_model="gpt2",
            classes=False,
            layouts=LAYOUTS,
            imports=tuple(dict.fromkeys(_GPT2 + _LLAMA)),
        ),
        _ours(
            "image_classification",
            "one label per image, cross entropy, ResNets",
            "image_classification:ImageClassification",
            {
                "small": Size("a ResNet of 0.3 M parameters, for small images on a CPU", _NO_LENGTHS),
                "resnet50": Size("ResNet-50, 25.6 M parameters with 1,000 classes; small is for a CPU", _NO_LENGTHS),
                OF_MODEL: _CONFIGURED,
            },
            options=ImageOptions,
            auto_size="resnet50",
            samples="images",
            lengths=None,
            names_model="microsoft/resnet-50",
            drops=False,
            batch_norm=True,
            imports=("transformers.models.resnet.modeling_resnet",),
        ),
        _ours(
            "mlp",
            "handwritten digits, a small network for teaching and tests",
            "mlp:DigitClassification",
            {"784-50-50-10": Size("two hidden layers of 50, ReLU, 42,310 parameters", _NO_LENGTHS)},
            auto_size="784-50-50-10",
            samples="digits",
            lengths=None,
            names_model="the folder of a saved one",
            drops=False,
        ),
    ),
)
