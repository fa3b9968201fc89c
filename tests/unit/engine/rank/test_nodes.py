"""What becomes of a launcher's folder when another node's holds rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.engine.rank.launched import settle
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore


def test_one_that_met_nobody_stays(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    assert settle(run) == (run, True)


def test_a_shared_folder_is_given_up(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first, other = store.create("train", "static"), store.create("train", "static")
    (other.logs_dir / "rank_1.log").write_text("hello")
    write_json(other.path / "met.json", {"id": first.id, "name": None, "shared": True})
    settled, ours = settle(other)
    assert settled == first and not ours
    assert not other.path.exists()
    assert (first.logs_dir / "rank_1.log").read_text() == "hello"


@pytest.mark.slow
def test_a_folder_of_its_own_takes_the_id(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    write_json(run.path / "met.json", {"id": "20261120-145312-static-k3f9", "name": "both", "shared": False})
    settled, ours = settle(run)
    assert ours and settled.path == tmp_path / "20261120-145312-static-k3f9"
    assert (settled.record().id, settled.name) == (settled.id, "both")


def test_rank_0s_own_folder_gets_the_name(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    write_json(run.path / "met.json", {"id": run.id, "name": "both", "shared": True})
    assert settle(run)[1]
    assert run.name == "both"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("first_has_rank_0", [True, False])
def test_a_name_that_was_replaced_meanwhile_does_not_come_back(
    tmp_path: Path, shared: bool, first_has_rank_0: bool
) -> None:
    """The first node's run has the name until another takes it while both nodes train."""
    stores = [RunStore(tmp_path / (place if shared else str(node))) for node, place in enumerate(("s", "s"))]
    named, other = stores[0].create("train", "static", name="both"), stores[1].create("train", "static")
    joined = named if first_has_rank_0 else other
    for run, visible in ((named, True), (other, shared)):
        sees_joined = shared or run == joined
        write_json(run.path / "met.json", {"id": joined.id, "name": None if visible else "both", "shared": sees_joined})
    takers = [store.create("train", "static", name="both", replace=True) for store in dict.fromkeys(stores)]
    settled = {settle(run)[0].path for run in (named, other)}
    for store, taker in zip(dict.fromkeys(stores), takers, strict=True):
        assert [run for run, record in store.entries() if record.name == "both"] == [taker]
    assert all(Run(path).record().id == joined.id for path in settled)


@pytest.mark.parametrize("first_has_rank_0", [True, False])
def test_the_name_goes_to_the_run_that_both_nodes_write(tmp_path: Path, first_has_rank_0: bool) -> None:
    store = RunStore(tmp_path)
    named, other = store.create("train", "static", name="both"), store.create("train", "static")
    joined = named if first_has_rank_0 else other
    for run in (named, other):
        write_json(run.path / "met.json", {"id": joined.id, "name": None, "shared": True})
    for run in (other, named):
        settle(run)
    assert [(run, run.name) for run in store.list()] == [(joined, "both")]
