"""What suggestions are worth: to a person who types, and to a larger model that checks them (speculative decoding).

    python benchmarks/suggestions.py --train babylm-small/train --dev babylm-small/dev --more mixed-10M/train \
        --models MODELS --out docs/results/suggestions.json

The target of speculative decoding is a model of the larger text; drafts are models of the smaller one, with the same
tokenizer. A token that is drawn from a draft q is accepted with probability Σ min(p, q), where p is the target; in
greedy decoding, if both prefer the same token. Both are averaged over stretches of the held-out text. Models that are
in the folder MODELS are not trained again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from saffu import SaffuLM, load
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files

STRETCHES = 40
CONTEXT = 200  # tokens that are read before the first prediction
PREDICTIONS = 50  # of each stretch
WORDS = 2000  # that are typed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "dev", "more", "models"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    model = options.models / "model"
    train(model, options.train)
    train(options.models / "small", options.train, "--tokenizer", model, "--order", 3, "--slots", 2)
    train(options.models / "target", options.more, "--tokenizer", model)
    results = {"drafts": drafts(options.models, options.dev), "typing": typing(model, options.dev)}
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def train(folder: Path, text: Path, *more: object) -> None:
    if not folder.exists():
        saffu("train", text, "--hold-out", 0, "--out", folder, *more)


def saffu(*arguments: object) -> str:
    whole = [sys.executable, "-m", "saffu", *map(str, arguments)]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


def typing(model: Path, dev: Path) -> dict[str, Any]:
    """What `saffu eval --typing` reports."""
    return {"words": WORDS} | json.loads(saffu("eval", model, dev, "--typing", WORDS, "--json"))["typing"]


def drafts(models: Path, dev: Path) -> dict[str, Any]:
    """How often the target accepts what each draft proposes."""
    target = load(models / "target")
    corpus = TokenCorpus.build(read_lines(find_files([str(dev)]), "file"), target.tokenizer_)
    begins = np.linspace(0, corpus.targets - CONTEXT - PREDICTIONS, STRETCHES).astype(int)
    stretches = [corpus.ids[begin : begin + CONTEXT + PREDICTIONS].tolist() for begin in begins]
    p = distributions(target, stretches)
    results: dict[str, Any] = {"predictions": len(p)}
    for name in ("model", "small"):
        q = distributions(load(models / name), stretches)
        same = p.argmax(axis=1) == q.argmax(axis=1)
        results[name] = {"accepted": float(np.minimum(p, q).sum(axis=1).mean()), "same_best": float(same.mean())}
    return results


def distributions(lm: SaffuLM, stretches: list[list[int]]) -> np.ndarray[Any, Any]:
    """Probabilities of all tokens after each place of the stretches, (predictions, N)."""
    rows = []
    for stretch in stretches:
        state = lm.model_.start(stretch[:CONTEXT])
        for token in stretch[CONTEXT:]:
            rows.append(np.exp(lm.model_.next_log_probabilities([state])[0]))
            state = lm.model_.advance(state, token)
    return np.array(rows)


if __name__ == "__main__":
    main()
