"""Every option of every command with values that make no sense."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from torture.harness import COMPANION, PAPER, QUICK, Attempt, command, documents, examples, prepared, resumed
from torture.kills import failed

VALUES = [
    "", " ", "-1", "0", "1", "2", "-0", "1.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "1e400", "NaN",
    str(2**31), str(2**32), str(2**63 - 1), str(2**63), str(10**23), "9" * 5000, "0x10", "1_000", "١٢", "½", "true",
    "none", "sum", "sum/cat", "cpu", "cuda", "cuda:9", "meta", "mps", "line", "text", "--", "-", "/", ".", "..", "~",
    "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/nowhere/at/all", "a\tb", "\x1b[31m", "é", "\udcff", "*",
    "[", "**/*", "a" * 300, "a/" * 3000, "$\\foo$", "name=value", "smoothing=", "=1", "2,4", ",", "2,,4", "1e6", "2M",
]  # fmt: skip
ANY = st.one_of(
    st.sampled_from(VALUES),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)
KINDS = ("model", "network", "companion")
UNTOUCHED = ("help", "out", "tensorboard", "ray")  # places to write to, and a cluster to start
ENDLESS = ("--epochs", "--minutes", "--samples")  # options that may ask for more than anybody could wait for


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    from saffu.cli.commands import COMMANDS
    from saffu.cli.options import Parser

    made, out, copy = prepared(place.parent / "made"), place / "out", place / "copy"
    text = f"{made['dev.txt']} --split line"
    lines = {
        "train": [f"train {text} --out {out} --force --max-tokens 300 {QUICK}"],
        "train companion": [f"train {text} --out {out} --force --max-tokens 300 {COMPANION}"],
        "train paper": [f"train {text} --out {out} --force --max-tokens 300 {PAPER} --backprop --max-folds 1"],
        "ablate": [f"ablate {text} --out {place / 'grid'} --blocks 2 --radii 2 --modes sum/cat --eval-tokens 100"],
        "eval": [f"eval {made[kind]} {text}" for kind in KINDS],
        "score": [f"score {made[kind]} {made['dev.txt']}" for kind in KINDS],
        "generate": [f"generate {made[kind]} the --max-tokens 5" for kind in KINDS],
        "explain": [f"explain {made[kind]} the" for kind in KINDS],
        "embed": [f"embed {made[kind]} the" for kind in KINDS],
        "info": [f"info {made['model']}"],
        "resume": [resumed(made, copy)],
        "update": [f"update {copy} {made['more.txt']} --epochs 1 --dev {made['dev.txt']}"],
        "forget": [f"forget {copy} {made['part.txt']} --drop-network"],
        "merge": [f"merge {made['model']} {made['other']} --out {out} --force"],
        "export": [f"export {made[kind]} --out {out} --force" for kind in KINDS],
        "pairs": [f"pairs {made[kind]} {made['pairs.jsonl']}" for kind in KINDS],
        "play": [f"play {made['model']} --no-browser"],
        "compare": [f"compare {made['model']} --out {place / 'curves'}"],
        "report": [f"report {place / 'grid'}"],
    }
    values = examples(ANY, rng)
    ready = [(name, line.split()) for name, found in lines.items() for line in found]
    while True:
        name, words = rng.choice(ready)
        parser = Parser(COMMANDS[words[0]])
        COMMANDS[words[0]].add_options(parser, words[1:])
        actions = [action for action in parser._actions if action.option_strings and action.dest not in UNTOUCHED]
        extra = []
        for action in rng.sample(actions, min(len(actions), rng.choice([1, 1, 2]))):
            value = [] if action.nargs == 0 else [next(values)]
            if action.dest == "set" and rng.random() < 0.8:
                names = sorted(parser.get_default("rare") or ["block_dimension", "hidden_dimension", "smoothing"])
                value = [f"{rng.choice(names)}={value[0]}"]
            extra += [rng.choice(action.option_strings), *value]
        if name in ("generate", "explain", "embed") and rng.random() < 0.3:
            words = [word if word != "the" else next(values) for word in words]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made["stopped" if name == "resume" else "companion"], copy)
        endless = name == "play" or any(option in extra for option in ENDLESS)
        ended = command([*words, *extra], stop=(10, signal.SIGINT) if endless else None, limit=120)
        wrong = ended.problem((0, 2, 130) if endless else (0, 2), megabytes=3000)
        if not wrong and (name in ("resume", "update", "forget")):
            wrong = failed(lambda folder: documents(folder) in (260, 300, 340), copy)
        yield name, wrong and f"{' '.join([*words[2:], *extra])[:300]!r}: {wrong}"
