"""The fields of the configuration that have a flag of their own; every other one is set with `--set`.

Values are passed on as typed: the configuration reads them by its own types, so that all mistakes, of the file and of
the command line, are reported together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Args:
        option: as typed, with dashes.
        key: dotted key that it sets.
        help: one line; `{names}` stands for the plug-ins that the key takes.
        metavar: what stands for the value in the help; the choices when there are some.
        choices: all values, where they are few and fixed.
    """

    option: str
    key: str
    help: str
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name under which click passes the value."""
        return f"flag_{self.key.replace('.', '__')}"

    @property
    def section(self) -> str:
        """The section of its key."""
        return self.key.partition(".")[0]


FLAGS: tuple[Flag, ...] = (
    Flag("--workload", "workload.name", "{names}, or your own module:Class or file.py:Class.", "NAME"),
    Flag("--dataset", "workload.dataset", "{names}.", "NAME"),
    Flag("--data-path", "workload.data_path", "Training file, of data sets that read files.", "FILE"),
    Flag("--eval-path", "workload.eval_path", "Evaluation file, of data sets that read files.", "FILE"),
    Flag("--text-column", "workload.text_column", "Column that holds the text.", "NAME"),
    Flag("--label-column", "workload.label_column", "Column that holds the label.", "NAME"),
    Flag("--length-column", "workload.length_column", "Column of lengths [length, or the only one].", "NAME"),
    Flag("--tokenizer", "workload.tokenizer", "Hub name, folder, or vocab.txt.", "NAME|PATH"),
    Flag("--model", "workload.model", "Hub name or folder of the model.", "NAME|PATH"),
    Flag("--weights", "workload.weights", "Where the model starts.", choices=("pretrained", "random")),
    Flag("--size", "workload.size", "Shape with random weights.", choices=("auto", "small", "base", "model")),
    Flag("--max-length", "workload.max_length", "Longest sample, tokens.", "N"),
    Flag("--subset", "workload.subset", "Random subset of this many training samples.", "N"),
    Flag("--mode", "schedule.mode", "Equal counts, or counts by length.", choices=("static", "dynamic")),
    Flag("--policy", "schedule.policy", "Policy of `dynbench solve --list`; dynamic alone means partition.", "NAME"),
    Flag("--solver", "schedule.solver", "Solver of prefix.", choices=("exact", "enumerate", "greedy")),
    Flag(
        "--cost-type",
        "schedule.cost_type",
        "Predicted cost of a micro-batch.",
        choices=("auto", "tokens", "tokens_sq", "attention", "measured"),
    ),
    Flag("--buffer", "schedule.buffer", "Samples that each rank of prefix holds.", "N"),
    Flag("--window", "schedule.window", "Global batches planned together.", "N"),
    Flag("--micro-batches", "schedule.micro_batches", "Micro-batches per rank and step, or auto.", "N"),
    Flag("--capacity", "schedule.capacity", "Largest micro-batch: N, one per rank (8,4), or a probe run.", "N|N,N|RUN"),
    Flag("--speeds", "schedule.speeds", "Relative speed of each rank (1,1,0.5), or auto.", "X,X"),
    Flag("--sync", "sync.name", "How gradients meet: {names}.", "NAME"),
    Flag("--compress", "compress.name", "What travels: {names}.", "NAME"),
    Flag("--steps", "train.steps", "Measured optimizer steps.", "N"),
    Flag("--warmup-steps", "train.warmup_steps", "Steps before measuring.", "N"),
    Flag("--global-batch", "train.global_batch", "Samples per step over all ranks.", "N"),
    Flag("--seed", "train.seed", "Seed of order, initialisation, subset and dropout.", "N"),
    Flag("--precision", "train.precision", "Number format.", choices=("auto", "fp32", "bf16", "fp16")),
    Flag("--learning-rate", "train.learning_rate", "AdamW's step size.", "X"),
    Flag("--launcher", "launch.launcher", "Real or virtual ranks.", choices=("auto", "torchrun", "virtual")),
    Flag("--nproc", "launch.nproc", "Ranks on this node, or auto.", "N"),
    Flag("--world-size", "launch.world_size", "Virtual ranks.", "N"),
    Flag("--threads", "launch.threads", "Computing threads per rank, or auto.", "N"),
    Flag("--device", "launch.device", "Where to compute.", choices=("auto", "cpu", "cuda")),
    Flag("--slowdown", "launch.slowdown", "Stretch a rank's compute: 1:2 makes rank 1 twice as slow.", "RANK:FACTOR"),
    Flag("--nnodes", "launch.nnodes", "Nodes, as for torchrun.", "N"),
    Flag("--node-rank", "launch.node_rank", "This node, as for torchrun.", "N"),
    Flag("--rdzv-endpoint", "launch.rdzv_endpoint", "Where nodes meet, as for torchrun.", "HOST:PORT"),
    Flag("--rdzv-id", "launch.rdzv_id", "Rendezvous id, as for torchrun.", "ID"),
    Flag("--probe", "probe.run", "Probe run to use, auto to make one first, or off.", "RUN|auto|off"),
    Flag("--memory-fraction", "probe.memory_fraction", "Share of the GPU's memory that a trial may use.", "X"),
    Flag("--memory-limit", "probe.memory_limit", "Memory that a trial may use on CPU, like 2GiB.", "SIZE"),
    Flag("--lengths", "probe.lengths", "Length grid of the probe, tokens.", "N,N"),
    Flag("--soak-steps", "probe.soak_steps", "Steps replayed at the capacities found.", "N"),
    Flag("--confidence", "analysis.confidence", "Level of the intervals.", "X"),
    Flag("--noise-threshold", "analysis.noise_threshold", "Differences below this part count as none.", "X"),
)
