"""Every option of every command with values that make no sense."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from torture.harness import PAPER, QUICK, Attempt, command, prepared

VALUES = [
    "", " ", "-1", "0", "1", "2", "-0", "1.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "1e400", "NaN",
    str(2**31), str(2**32), str(2**63 - 1), str(2**63), str(10**23), "9" * 5000, "0x10", "1_000", "١٢", "½", "true",
    "none", "sum", "sum/cat", "cpu", "cuda", "cuda:9", "meta", "mps", "line", "text", "--", "-", "/", ".", "..", "~",
    "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/nowhere/at/all", "a\tb", "\x1b[31m", "é", "\udcff", "*",
    "[", "**/*", "a" * 300, "a/" * 3000, "$\\foo$", "name=value", "smoothing=", "=1", "2,4", ",", "2,,4", "1e6", "2M",
]  # fmt: skip


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    from saffu.cli.commands import COMMANDS
    from saffu.cli.options import Parser

    made, out = prepared(place.parent / "made"), place / "out"
    text = f"{made['dev.txt']} --split line"
    lines = {
        "train": [f"train {text} --out {out} --force --max-tokens 300 {QUICK}"],
        "train paper": [f"train {text} --out {out} --force --max-tokens 300 {PAPER} --backprop --max-folds 1"],
        "ablate": [f"ablate {text} --out {place / 'grid'} --blocks 2 --radii 2 --modes sum/cat --eval-tokens 100"],
        "eval": [f"eval {made['model']} {text}", f"eval {made['network']} {text}"],
        "score": [f"score {made['model']} {made['dev.txt']}"],
        "generate": [f"generate {made['model']} the --max-tokens 5", f"generate {made['network']} the --max-tokens 5"],
        "explain": [f"explain {made['model']} the", f"explain {made['network']} the"],
        "embed": [f"embed {made['model']} the", f"embed {made['network']} the"],
        "info": [f"info {made['model']}"],
        "merge": [f"merge {made['model']} {made['other']} --out {out} --force"],
        "pairs": [f"pairs {made['model']} {made['dev.txt']}"],
        "compare": [f"compare {made['model']} --out {place / 'curves'}"],
        "report": [f"report {place / 'grid'}"],
    }
    ready = [(name, line.split()) for name, found in lines.items() for line in found]
    while True:
        name, words = rng.choice(ready)
        parser = Parser(COMMANDS[words[0]])
        COMMANDS[words[0]].add_options(parser, words[1:])
        actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
        chosen = rng.sample(actions, rng.choice([1, 1, 2]))
        extra = [
            word
            for action in chosen
            for word in [rng.choice(action.option_strings)] + ([] if action.nargs == 0 else [rng.choice(VALUES)])
            if action.dest not in ("out", "tensorboard")
        ]
        ended = command([*words, *extra], limit=120)
        yield name, wrong and f"{' '.join(extra)[:200]}: {wrong}" if (wrong := ended.problem(megabytes=3000)) else ""
