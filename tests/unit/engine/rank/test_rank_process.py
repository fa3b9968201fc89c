from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from forked import ForkedPopen

from dynbench.config.schema import Launch
from dynbench.engine.rank.rank_process import RankContext, gpu_index, process_group
from dynbench.signals import handled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")


def ended(code: str, *arguments: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a program that has the module `rank_process` and this process's defaults."""
    imports = "import os, signal, sys; from pathlib import Path; from dynbench.engine.rank import rank_process\n"
    words = [sys.executable, "-c", imports + code, *map(str, arguments)]
    process = ForkedPopen(words, stdout=subprocess.PIPE, text=True, env=environment)
    output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.slow
def test_a_rank_whose_launcher_died_while_it_started_ends_at_once():
    code = "rank_process.die_with_parent(int(sys.argv[1]))"
    assert [ended(code, os.getpid() + wrong)[0] for wrong in (0, 1)] == [0, 143]


@pytest.mark.parametrize(
    ("environment", "gpus", "index"),
    [({}, 4, 2), ({}, 1, 2), ({"SLURM_LOCALID": "2"}, 4, 2), ({"SLURM_LOCALID": "2"}, 1, 0)],
)
def test_the_gpu_of_a_rank(monkeypatch, environment, gpus, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert gpu_index(2, environment) == index


@pytest.mark.parametrize(
    ("device", "used", "left_open"), [("cpu", False, False), ("cuda", False, True), ("cpu", True, True)]
)
def test_a_rank_that_fails_does_not_wait_for_the_others_in_nccl(monkeypatch, device, used, left_open):
    closed = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: closed.append(device))
    context = RankContext(rank=0, local_rank=0, world_size=2, device=torch.device(device, 0))
    with pytest.raises(MemoryError), process_group(context, Launch()):
        raise MemoryError
    assert (closed == []) == left_open
    with process_group(context, Launch()):
        pass
    assert closed[-1:] == [device]


def test_a_rank_that_waits_for_the_others_in_torch_is_ended_by_a_signal(monkeypatch):
    """A handler in Python would be heard when torch gives up: of a launcher that was killed, after the time-out."""
    heard = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: heard.append(signal.getsignal(signal.SIGTERM)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    context = RankContext(rank=0, local_rank=0, world_size=2, device=torch.device("cpu"))
    with handled(signal.SIG_IGN), process_group(context, Launch()):
        heard.append(signal.getsignal(signal.SIGTERM))
    assert heard == [signal.SIG_DFL, signal.SIG_IGN]


@pytest.mark.slow
def test_a_process_ends_at_once_with_its_output_written():
    code = "import atexit; atexit.register(print, 'shut down'); print('said'); rank_process.exit_now(7)"
    assert ended(code) == (7, "said\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ignored"), [("SIGTERM", True), ("SIGINT", True), ("SIGHUP", False), ("SIGHUP", True)]
)
def test_a_signal_waits_for_the_step_in_progress_and_a_nohup_stays_one(name, ignored):
    code = (
        "number = getattr(signal, sys.argv[1])\n"
        "signal.signal(number, signal.SIG_IGN if sys.argv[2] == 'True' else signal.SIG_DFL)\n"
        "stop = rank_process.StopFlag()\n"
        "with stop.defer():\n"
        "    os.kill(os.getpid(), number)\n"
        "print(stop.signum == number); sys.stdout.flush()\n"
        "os.kill(os.getpid(), number)\n"
    )
    kept = name == "SIGHUP" and ignored
    assert ended(code, name, ignored) == (0 if kept else 128 + getattr(signal, name), f"{not kept}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "workers"), [("threads=2, nproc=2", 4), ("threads=1, nproc=1, world_size=3", 3)])
def test_texts_are_tokenised_by_the_threads_of_all_ranks_of_a_node(launch, workers):
    code = (
        "from dynbench.config.schema import Launch\n"
        "from dynbench.workloads.tokenizer import byte_tokenizer\n"
        f"rank_process.set_threads(Launch({launch}))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "byte_tokenizer().encode_batch_fast(['one', 'two'] * 1000)\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "RAYON_NUM_THREADS"}
    assert ended(code, environment=environment) == (0, f"{workers}\n")


@pytest.mark.slow
def test_a_second_signal_while_a_model_is_saved_leaves_what_was_there(tmp_path):
    code = (
        "from dynbench.runs.atomic import replacing_folder\n"
        "stop, folder = rank_process.StopFlag(), Path(sys.argv[1]) / 'last'\n"
        "with stop.defer():\n"
        "    with replacing_folder(folder) as partial:\n"
        "        (partial / 'model').write_text('first')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    with replacing_folder(folder) as partial:\n"
        "        (partial / 'model').write_text('half')\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    assert ended(code, tmp_path) == (130, "")
    assert {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"model": "first"}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
