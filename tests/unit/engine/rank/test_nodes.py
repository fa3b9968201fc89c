"""What becomes of a launcher's folder when another node's holds rank 0."""

from __future__ import annotations

import pytest

from dynbench.engine.rank.launched import settle
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def created(store: RunStore, name: str | None = None, replace: bool = False) -> Run:
    return store.create("train", "static", name=name, replace=replace)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("first_has_rank_0", [True, False])
def test_the_name_goes_to_the_run_that_both_nodes_write_unless_another_has_it(
    tmp_path, replaced, shared, first_has_rank_0
):
    """The first node's run has the name until both have ended, or until another takes it while they train."""
    first, second = (RunStore(tmp_path / ("s" if shared else node)) for node in "ab")
    named, other = created(first, "both"), created(second)
    joined = named if first_has_rank_0 else other
    for run, visible in ((named, True), (other, shared)):
        met = {"id": joined.id, "name": None if visible else "both", "shared": shared or run == joined}
        write_json(run.path / "met.json", met)
    stores = dict.fromkeys((first, second))
    taken = [created(store, "both", replace=True) for store in stores if replaced]
    settled = [settle(run) for run in (other, named)]
    assert [finishes for _, finishes in settled] == [not shared or run == joined for run in (other, named)]
    assert all(Run(run.path).record().id == joined.id for run, _ in settled)
    having = [run for store in stores for run, record in store.entries() if record.name == "both"]
    if replaced:
        assert having == taken
    else:
        assert [run.record().id for run in having] == [joined.id] * len(stores)
