"""What an offline problem takes from `probe.run`: its cost, and capacities and speeds where they are its ranks'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynbench.config.schema import Config
from dynbench.engine.launching.probe_use import PROBE_AGAIN
from dynbench.engine.planning import (
    build_capacity,
    build_speeds,
    least_capacity_warning,
    load_probe,
    names_a_probe,
    probe_capacity,
    probe_speeds,
)
from dynbench.errors import ConfigError
from dynbench.padding import padded_lengths
from dynbench.runs.probe_record import ProbeRecord
from dynbench.schedule.capacity import Capacity
from dynbench.schedule.plan import FloatArray
from dynbench.schedule.rank_classes import distinct_speeds
from dynbench.schedule.traces import Trace


@dataclass(frozen=True)
class OfflineRanks:
    """Capacities and speeds at any number of ranks.

    Args:
        config: may name a probe.
        root: results folder in which it is looked up.
        probe: what `probe.run` names, None where it names none.
        pad_to_multiple_of: padded lengths are multiples of this, tokens.
    """

    config: Config
    root: Path
    probe: ProbeRecord | None
    pad_to_multiple_of: int

    @classmethod
    def of(cls, config: Config, root: Path) -> OfflineRanks:
        """What the configuration and the probes that it names say.

        Raises:
            ConfigError: lengths padded to another multiple than a probe's.
            UsageError, RecordError: a probe run that cannot be used.
        """
        capacity, multiple = config.schedule.capacity, config.workload.pad_to_multiple_of
        probe = load_probe(config.probe.run, "probe.run", root) if names_a_probe(config) else None
        probes = {"probe.run": probe} if probe else {}
        if isinstance(capacity, str):
            probes["schedule.capacity"] = load_probe(capacity, "schedule.capacity", root)
        wanted = next((found.pad_to_multiple_of for found in probes.values()), 1) if multiple == "auto" else multiple
        problems = [
            f"workload.pad_to_multiple_of: {wanted}, but {key} was made with {found.pad_to_multiple_of}"
            for key, found in probes.items()
            if found.pad_to_multiple_of != wanted
        ]
        if problems:
            raise ConfigError(problems, PROBE_AGAIN)
        return cls(config, root, probe, wanted)

    def capacity(self, longest: int, world_size: int) -> Capacity:
        """As configured, else the probe's where it measured these ranks and samples as long as the longest."""
        if self._knows_capacity(world_size) and self._reaches(longest):
            assert self.probe is not None
            found = probe_capacity(self.probe, world_size, self.config.schedule.micro_batches)
            # Plans made offline know no positions: they pad the longest samples on to the next multiple.
            return type(found)(tuple((*row, (self._rounded(row[-1][0]), row[-1][1])) for row in found.rows))
        return build_capacity(self.config, world_size, self.root)

    def speeds(self, world_size: int) -> FloatArray | None:
        """As configured, else the probe's where it measured these ranks."""
        if self.config.schedule.speeds is None and self.probe is not None:
            return probe_speeds(self.probe, world_size)
        return build_speeds(self.config)

    def left_out(self, traces: Sequence[Trace], world_sizes: Sequence[int]) -> list[str]:
        """What of the probe is not used and why, one line each."""
        capacity = self.config.schedule.capacity
        if isinstance(capacity, str):
            probe = load_probe(capacity, "schedule.capacity", self.root)
            return [*least_capacity_warning(capacity, probe, self.config), *self._left_out(traces, world_sizes)]
        return self._left_out(traces, world_sizes)

    def _left_out(self, traces: Sequence[Trace], world_sizes: Sequence[int]) -> list[str]:
        if self.probe is None:
            return []
        named, measured = f"probe.run {self.config.probe.run}", len(self.probe.speeds)
        takes_capacity = self.config.schedule.capacity is None
        takes_speeds = self.config.schedule.speeds is None and distinct_speeds(self.probe.speeds) is not None
        lines = []
        if self.probe.layout != self.config.workload.layout:
            measured_so, asked = f"{named} measured {self.probe.layout} micro-batches", self.config.workload.layout
            if takes_capacity:
                lines.append(f"{measured_so}: its capacities are left out")
            if self.config.schedule.cost_type in ("auto", "measured") and not self.config.schedule.cost_coefficients:
                lines.append(f"{measured_so}: {asked} ones are priced as these; probe with --layout {asked} instead")
            takes_capacity = False
        for part, sizes in (
            ("capacities", [size for size in world_sizes if takes_capacity and not self._knows_capacity(size)]),
            ("speeds", [size for size in world_sizes if takes_speeds and size != measured]),
        ):
            if sizes:
                lines.append(
                    f"{named} measured {measured} ranks: its {part} are left out at G={', '.join(map(str, sizes))}; "
                    f"--world-size {measured} takes them"
                )
        if takes_capacity and len(self.probe.tables) in world_sizes:
            lines += least_capacity_warning(named, self.probe, self.config)
        long = [trace.name for trace in traces if not self._reaches(int(trace.lengths.max()))]
        if long and any(self._knows_capacity(size) for size in world_sizes):
            lines.append(
                f"{named} tried up to {self._longest} tokens: its capacities are left out for {', '.join(long)}; "
                f"--max-length {self._longest} takes them"
            )
        return lines

    @property
    def _longest(self) -> int:
        """Longest padded length that every rank of the probe tried with success, tokens."""
        assert self.probe is not None
        return min((table[-1][0] for table in self.probe.tables if table), default=0)

    def _knows_capacity(self, world_size: int) -> bool:
        if self.probe is None or self.config.schedule.capacity is not None:
            return False
        return self.probe.layout == self.config.workload.layout and len(self.probe.tables) in (1, world_size)

    def _reaches(self, longest: int) -> bool:
        assert self.probe is not None
        positions = self.probe.positions
        within = positions is None or longest <= positions
        return within and int(padded_lengths(longest, self.pad_to_multiple_of, positions)) <= self._longest

    def _rounded(self, length: int) -> int:
        return int(padded_lengths(length, self.pad_to_multiple_of, None))
