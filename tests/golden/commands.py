"""The commands whose answers are held golden."""

from __future__ import annotations

HELP = (
    *("", "probe", "train", "solve", "analyze", "report", "compare", "bench", "eval", "generate", "tensorboard"),
    *("data", "data cache", "data lengths", "data wikipedia", "runs", "runs export", "runs ls", "runs rm", "runs show"),
    *("recipes", "recipes cp", "recipes ls", "recipes show", "sync", "sync check", "sync demo", "sync ls", "compress"),
    *("compress ls", "plugins", "guide", "doctor"),
)
"""Commands whose --help is held."""

SET = (
    "window",
    "window --set schedule.window=1",
    "window --set schedule.window=3",
    "static --set schedule.window=1",
    "window --set schedule.window=3 --window 2,4",
    "static --set schedule.window=3",
    "prefix --solver greedy --seed 3",
    "partition --cost_type attention --max-length 40",
    "partition --speeds 1,0.5 --capacity 7,6",
    "packed --capacity 3000",
    "static,partition --micro-batches 2 --objective slots",
    "static --max-length 700",
    "static,partition --micro-batches 2",
    "static,partition --micro-batches 2 --set sync.name=fsdp",
    "static --set workload.max_length=100",
    "static --max-length 350",
    "static,partition --max-length 512",
)
"""Policies and options of plans."""
SOLVED = (
    "solve lognormal --world-size 2,4 --steps 8 --cost-type tokens",
    "solve lognormal --world-size 4 --steps 8 --cost-type attention --micro-batches 2 --max-length 256",
    "solve lognormal --world-size 4 --steps 8 --layout packed --max-length 256",
    "solve sst2 --world-size 4 --steps 4 --policy static,partition,prefix,window --window 2,4 --order file",
    "solve embedded --world-size 2 --steps 4 --policy all --capacity 16",
    "solve sst2 --policy window --window 7 --steps 70 --world-size 2 --no-figures",
    *(f"solve lognormal --world-size 2 --batch-per-rank 4 --steps 6 --no-figures --policy {given}" for given in SET),
)
"""Plans of traces: their results and figures are values, without what planning took."""

NAMED = "--nproc 2 --threads 1 --launcher torchrun --device cpu"
COMMANDS = (
    # what can be chosen
    *("plugins", "plugins policies --format md", "plugins strategies --format csv", "plugins nothing", "bench ls"),
    *("sync ls", "compress ls", "solve --list", "recipes ls", "recipes show first_steps", "recipes show nothing"),
    *("guide", "guide verdict"),
    *("recipes cp quickstart mine.yaml", "recipes cp quickstart mine.yaml", "recipes cp quickstart no/where.yaml"),
    *("recipes cp quickstart 'my own.yaml'", "train -c 'my own.yaml'", "probe -c 'my own.yaml' --json"),
    *("solve -c 'my own.yaml'", "data lengths -c 'my own.yaml'", "solve --list --json --format md", "doctor quikstart"),
    "doctor --set launch.nproc=4",
    # the registry
    *("runs ls", "runs ls --launches --limit 1", "runs ls --command train --format csv", "runs ls --status failed"),
    *("runs ls --name 'no*'", "runs ls --since 3y", "runs show plain", "runs show @latest:probe", "runs show nothing"),
    "runs ls --command probe,train --limit 3",
    "runs ls --status failed,oom --command probe",
    "runs ls --policy window",
    "runs ls --dataset embedded --limit 1",
    "runs ls --dataset lognormal",
    "runs ls --since 2026-11-24",
    "runs ls --since 2026-11-25",
    "runs ls --since 1h",
    *("runs ls --status faild", "runs ls --since yesterday", "runs ls --since 99999999999w", "runs ls --limit 0"),
    *("runs ls --json --nope", "--json nothing"),
    *("runs show 2026", "runs rm plain --dry-run", "runs rm plain", "runs rm --failed --dry-run", "runs rm"),
    *("runs export plain within -o two.zip", "runs export probed -o probe.zip", "runs export plain -o no/where.zip"),
    # analysis
    *("analyze plain", "analyze plain --format md", "analyze plain -q"),
    *("analyze plain within", "analyze plain within --format md", "analyze plain within --json --force"),
    *("analyze plain slowed", "analyze plain served", "analyze plain packed --question levers", "analyze plain plain"),
    *("analyze plain within -v", "analyze plain --strict"),
    *("analyze plain within --fail-on faster,slower,estimate", "analyze plain --fail-on cheap"),
    *("analyze probed", "analyze nothing", "analyze", "analyze plain within --question nothing"),
    *("analyze plain within profiled exposed slowed -q --force", "analyze plain virtual -q --force"),
    "analyze plain within profiled exposed --format csv",
    "analyze plain within profiled exposed --format md",
    *("analyze within --against two.zip", "analyze two.zip --question schedule", "analyze plain --against none.zip"),
    *("analyze plain within --baseline other", "analyze plain --confidence 2", "analyze plain --set analysis.none=1"),
    # reports
    *("report plain", "report probed", "report nothing"),
    *("report plain -o report.pdf", "report plain --template none.md", "report plain --lang fr", "report plain --json"),
    *("report -o - --json", "report plain -o x.html --format md", "report plain -o x.md --format html"),
    "report plain --open --format md",
    # what is checked before anything runs
    *(f"train --dry-run {NAMED}", f"train --dry-run {NAMED} --mode dynamic --policy packed --micro-batches 2 --json"),
    *(f"train --dry-run {NAMED} --set train.stepz=3", f"train --dry-run {NAMED} --policy partitoin --steps 0"),
    *(f"train --dry-run {NAMED} --global-batch 1", f"train --dry-run {NAMED} --dataset tsv --data-path none.tsv"),
    *(f"train --dry-run {NAMED} --sync ps --compress topk", f"train --dry-run {NAMED} --buffer 4 --window 3"),
    f"train --dry-run {NAMED} --exposed --name b",
    f"train --dry-run {NAMED} --set schedule.cost_type=attention --set schedule.replan_steps=3 --json",
    f"compare --dry-run {NAMED} --arm a --arm b:policy=prefix --set analysis.confidence=0.9 --set compress.ratio=0.5",
    *(f"train --dry-run {NAMED} --name plain", f"train --dry-run {NAMED} --capacity nothing", "train --nproc none"),
    *(f"train --dry-run {NAMED} --compress-config '{given}'" for given in ("{ratio: 1}", "[1]", '{"ratio": 2}')),
    *("train --help-all", "completion bash"),
    *("train --steps", "train extra", "trian", "--version", "--nothing", "runs nothing"),
    *(f"compare quickstart --dry-run {NAMED}", f"compare sync --dry-run {NAMED} --json", "compare nothing"),
    f"compare --arm a:policy=static --arm b:policy=partition --over global_batch=32,64 --dry-run {NAMED}",
    "compare --arm a:mode=static --arm b:policy=static --arm c:policy=partition --arm d:mode=dynamic "
    f"--dry-run {NAMED}",
    f"compare --arm a:capacity=32 --arm b:probe=off --dry-run {NAMED}",
    "compare --arm a --arm b:threads=1 --dry-run --nproc 2 --launcher torchrun --device cpu --json",
    "compare --json --arm static:schedule.mode=static --arm part:policy=partition --over train.global_batch=8,16 "
    f"--over seed=1,2 --dry-run {NAMED}",
    *("compare --arm a:nothing=1", "compare --arm a", "compare quickstart --launches 3 --dry-run"),
    "compare --resume plain",
    # the rest
    *("bench nothing", "bench collectives --set sizes=1", "bench --resume plain", "eval plain", "eval nothing"),
    "bench --full",
    "bench --set sizes_mib=1",
    "bench --name c",
    "bench collectives --resume x",
    "bench --full --resume x",
    *("bench --set sizes_mib=1 --resume x", "bench --name c --resume x", "bench collectives --set sizes_mib=1e308"),
    *("generate plain --prompt a", "tensorboard plain", "data lengths --subset 90 -o l.csv", "data lengths -o l.xyz"),
    *("tensorboard", "tensorboard nothing", "data lengths probed", "data lengths -o no/l.csv"),
    *("solve sst2 --world-size 8 --global-batch 4", "solve sst2 --world-size 4,x", "solve gsm8k --world-size 1024"),
    *("solve sst2 gsm8k --write-trace x.csv", "solve --from-run nothing", "solve --policy packed --layout padded"),
    *("runs ls --command bench,solve", "solve --world-size 2 --batch-per-rank 4 --policy packed --capacity 40"),
    "solve --world-size 2 --batch-per-rank 4 --policy partition --layout packed --capacity 40",
    *("solve nothing.csv", "solve lognormal --policy best", "probe --set probe.lengths=[0]", "sync check nothing"),
)
"""Over the runs of the recording `single`."""
