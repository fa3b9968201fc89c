"""What becomes of a launcher's folder when another node's holds rank 0."""

from __future__ import annotations

import pytest

from dynbench.engine.rank.launched import settle
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def created(store: RunStore, name: str | None = None, replace: bool = False) -> Run:
    return store.create("train", "static", name=name, replace=replace)


def met(run: Run, joined: str, *, shared: bool, name: str | None = None) -> None:
    """What this node has learnt of the run that all of them join."""
    write_json(run.path / "met.json", {"id": joined, "name": name, "shared": shared})


def test_rank_0s_own_folder_gets_the_name(store):
    run = created(store)
    met(run, run.id, name="both", shared=True)
    assert settle(run)[1]
    assert run.name == "both"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("first_has_rank_0", [True, False])
def test_a_name_that_was_replaced_meanwhile_does_not_come_back(tmp_path, shared, first_has_rank_0):
    """The first node's run has the name until another takes it while both nodes train."""
    first, second = (RunStore(tmp_path / ("s" if shared else node)) for node in "ab")
    named, other = created(first, "both"), created(second)
    joined = named if first_has_rank_0 else other
    for run, visible in ((named, True), (other, shared)):
        met(run, joined.id, name=None if visible else "both", shared=shared or run == joined)
    taken = {store: created(store, "both", replace=True) for store in dict.fromkeys((first, second))}
    settled = {settle(run)[0].path for run in (named, other)}
    for store, taker in taken.items():
        assert [run for run, record in store.entries() if record.name == "both"] == [taker]
    assert all(Run(path).record().id == joined.id for path in settled)


@pytest.mark.parametrize("first_has_rank_0", [True, False])
def test_the_name_goes_to_the_run_that_both_nodes_write(store, first_has_rank_0):
    named, other = created(store, "both"), created(store)
    joined = named if first_has_rank_0 else other
    for run in (named, other):
        met(run, joined.id, shared=True)
    assert [settle(run) for run in (other, named)] == [(joined, other == joined), (joined, named == joined)]
    assert [(run, run.name) for run in store.list()] == [(joined, "both")]
