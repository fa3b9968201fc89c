"""What becomes of a launcher's folder when another node's holds rank 0."""

from __future__ import annotations

from pathlib import Path

from dynbench.engine.nodes import settle
from dynbench.runs.atomic import write_json
from dynbench.runs.store import RunStore


def test_one_that_met_nobody_stays(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    assert settle(run).run == run and settle(run).ours


def test_a_shared_folder_is_given_up(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first, other = store.create("train", "static"), store.create("train", "static")
    (other.logs_dir / "rank_1.log").write_text("hello")
    write_json(other.path / "met.json", {"id": first.id, "name": None, "shared": True})
    settled = settle(other)
    assert settled.run == first and not settled.ours
    assert not other.path.exists()
    assert (first.logs_dir / "rank_1.log").read_text() == "hello"


def test_a_folder_of_its_own_takes_the_id(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    write_json(run.path / "met.json", {"id": "20261120-145312-static-k3f9", "name": "both", "shared": False})
    settled = settle(run)
    assert settled.ours and settled.run.path == tmp_path / "20261120-145312-static-k3f9"
    assert (settled.run.record().id, settled.run.name) == (settled.run.id, "both")


def test_rank_0s_own_folder_gets_the_name(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create("train", "static")
    write_json(run.path / "met.json", {"id": run.id, "name": "both", "shared": True})
    assert settle(run).ours
    assert run.name == "both"
