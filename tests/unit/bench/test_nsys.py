"""The kernels of a step: what their shares add up to, the ranges of attention, and the commands for nsys."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from answered import unanswered
from bench_jobs import made, rows_here

from dynbench.bench import nsys
from dynbench.bench.base import Row
from dynbench.bench.model_step import build_model, ranged_model
from dynbench.bench.nsys import KINDS, PHASES_OF, RANGES, kind_of, run_nsys, run_step, write_commands
from dynbench.runs.run import start_mark

CPU = torch.device("cpu")
LAYERS, HEADS, CHANNELS, CONTEXT = 4, 4, 32, 16
FEW = {"contexts": (CONTEXT,), "local_batch": 2, "iterations": 2, "warmup": 1}
BENCHMARK = made("nsys", **FEW, device="cpu", nsys="never", precisions=("fp32",))


@pytest.fixture(scope="module")
def measured() -> Sequence[Row]:
    return rows_here(BENCHMARK)


def of(rows: Sequence[Row], phase: str, part: str) -> list[Row]:
    return [row for row in rows if row.columns["phase"] == phase and row.columns["part"] == part]


def test_every_phase_is_told_and_its_parts_add_up(measured):
    assert {row.columns["phase"] for row in measured} == set(PHASES_OF)
    assert {(row.status, row.unit, row.n, row.case) for row in measured} == {("ok", "ms", 2, "tiny, context 16, fp32")}
    assert all(row.mean > 0 and row.columns["calls"] > 0 for row in measured)
    for phase in PHASES_OF:
        (total,) = of(measured, phase, "total")
        kinds, kernels = of(measured, phase, "kind"), of(measured, phase, "kernel")
        assert sum(row.columns["share"] for row in kinds) == pytest.approx(1)
        assert sum(row.columns["calls"] for row in kinds) == total.columns["calls"]
        assert {row.columns["kernel"] for row in kinds} <= {*KINDS, "other"}
        shares = [row.columns["share"] for row in kernels]
        assert len(kernels) == 3 and shares == sorted(shares, reverse=True) and sum(shares) <= 1
        assert all(row.columns["kind"] == kind_of(str(row.columns["kernel"])) for row in kernels)
        assert (of(measured, phase, "range") != []) == (phase in ("inference", "forward"))


def test_calls_and_flops_of_known_kernels(measured):
    products = {row.columns["phase"]: row.columns["calls"] for row in measured if row.columns["kernel"] == "matmul"}
    # Four projections and two products of attention per layer, and the head; twice as many backwards, but that the
    # embedding's gradient is no product of matrices.
    assert products["inference"] == products["forward"] == 6 * LAYERS + 1
    assert products["backward"] == 2 * (6 * LAYERS + 1) and "optimizer" not in products
    assert products["step"] == products["forward and backward"] == 3 * (6 * LAYERS + 1)
    ranges = of(measured, "forward", "range")
    assert [row.columns["kernel"] for row in ranges] == list(RANGES)
    assert {row.columns["calls"] for row in ranges} == {LAYERS}
    scores = 2 * HEADS * CONTEXT**2 * LAYERS
    flops = {row.columns["kernel"]: row.columns["flops"] for row in ranges}
    assert flops == {
        "scores": 2 * scores * CHANNELS, "mask": scores, "softmax": 5 * scores, "values": 2 * scores * CHANNELS
    }  # fmt: skip


def test_the_questions_have_answers(measured):
    """Those of recorded rows are among the goldens."""
    (answer,) = BENCHMARK.summary(measured)["answers"]
    assert unanswered("nsys", measured) == [] and BENCHMARK.said([]) == []
    assert answer["softmax_over_matmul_flops"] == pytest.approx(5 / (4 * CHANNELS))
    assert "matmul" not in answer["forward_others"] and answer["forward_others"]


def test_the_model_with_ranges_gives_what_the_model_gives():
    models = (make("tiny", CONTEXT, CPU).eval() for make in (build_model, ranged_model))
    expected, found = (model(input_ids=torch.arange(CONTEXT)[None]).logits for model in models)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        ("matmul", ("aten::addmm", "aten::bmm", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32")),
        ("matmul", ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>")),
        ("elementwise", ("aten::add", "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")),
        ("softmax", ("aten::_softmax", "aten::_softmax_backward_data", "void softmax_warp_forward<float, 7, false>")),
        ("loss", ("aten::_log_softmax", "void at::native::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>")),
        ("norm", ("aten::native_layer_norm_backward",)),
        ("copy", ("aten::copy_", "aten::cat")),
        ("embedding", ("aten::embedding_dense_backward",)),
        ("optimizer", ("Optimizer.step#AdamW.step", "void multi_tensor_apply_kernel<FusedAdamMathFunctor>")),
        ("other", ("aten::view",)),
    ],
)
def test_kinds_of_kernels(kind, kernels):
    assert {kind_of(kernel) for kernel in kernels} == {kind}


def fake_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = folder / "bin" / "nsys"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{script}")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize("code", [0, 3])
def test_nsys_is_run_where_it_is(tmp_path, monkeypatch, caplog, code):
    calls = tmp_path / "calls"
    fake_nsys(tmp_path, monkeypatch, f'echo "$@" >> {calls}\n[ "$1" = profile ] && exit {code}\necho done\n')
    script = write_commands(*BENCHMARK.cases(), tmp_path, on_gpu=True)
    assert script == tmp_path / "nsys" / "tiny-16-float32.sh"
    assert run_nsys(script) == (code == 0)
    profiled, *sums = calls.read_text().splitlines()
    assert profiled.startswith("profile --trace=cuda,nvtx,osrt --capture-range=cudaProfilerApi")
    assert profiled.endswith("-m dynbench.bench.nsys tiny 16 2 float32 cuda")
    if code == 0:
        assert sums[0].startswith("stats") and "--report=nvtx_kern_sum" in sums[0]
        assert sums[0].endswith("nsys/tiny-16-float32.nsys-rep")
    else:
        assert sums == [] and "exit code 3" in caplog.text and "tiny-16-float32.log" in caplog.text


@pytest.mark.parametrize("ends", [subprocess.TimeoutExpired("nsys", 600), SystemExit(143)], ids=["time", "SIGTERM"])
def test_nothing_of_nsys_is_left_when_it_is_over(tmp_path, monkeypatch, caplog, ends):
    pid = tmp_path / "pid"

    class OverOnceItRuns(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            while timeout is not None:
                if pid.exists():
                    raise ends
            return super().wait()

    fake_nsys(tmp_path, monkeypatch, f"sleep 100 &\necho $! > {pid}.new\nmv {pid}.new {pid}\nwait\n")
    monkeypatch.setattr(subprocess, "Popen", OverOnceItRuns)
    script = write_commands(*BENCHMARK.cases(), tmp_path, on_gpu=False)
    with pytest.raises(SystemExit) if isinstance(ends, SystemExit) else nullcontext():
        assert not run_nsys(script) and "600 s were over" in caplog.text
    until = time.monotonic() + 30
    while start_mark(int(pid.read_text())) is not None:  # of SIGKILL it ends in its own time
        assert time.monotonic() < until
        time.sleep(0.01)


def test_nsys_is_left_out_where_it_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    script = write_commands(*BENCHMARK.cases(), tmp_path, on_gpu=False)
    assert not run_nsys(script) and "capture-range" not in script.read_text()
    assert [path.name for path in script.parent.iterdir()] == [script.name], "nothing was run, and nothing said"


def test_what_nsys_profiles_runs(monkeypatch):
    seen: list[str] = []
    span = nsys.span
    monkeypatch.setattr("dynbench.bench.nsys.span", lambda name: seen.append(name) or span(name))
    run_step(["tiny", "8", "1", "bfloat16", "cpu"])
    assert [name for name in seen if name not in RANGES][-4:] == ["inference", "forward", "backward", "optimizer"]
