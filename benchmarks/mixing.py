"""A mixture next to what else could be made of two models: bits per byte of text like that of the first.

    saffu train general/*.txt --out general
    saffu train own/*.txt --tokenizer general --out own
    python benchmarks/mixing.py own general --dev dev/*.txt --out docs/results/mixing.json

Every tenth stretch of the held-out text fits weights, and the rest is scored. The Kneser–Ney models are 5-grams of the
same tokens, interpolated linearly, as KenLM's and SRILM's are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import saffu
from saffu.calibrated.kneser_ney import KneserNey
from saffu.calibrated.mixture import fitted_mixture
from saffu.calibrated.model import CalibratedModel
from saffu.interface import Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import hold_out, read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("own", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--dev", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, help="add the results to this JSON file, under the name of OWN")
    options = parser.parse_args()
    own, base = saffu.load(options.own), saffu.load(options.base)
    tune, dev = (
        TokenCorpus.build(hold_out(read_lines(options.dev, "file"), 10, part), own.tokenizer_) for part in (True, False)
    )
    bits: dict[str, float] = {}

    def report(name: str, log_p: Floats) -> None:
        bits[name] = -float(log_p.sum()) / np.log(2) / dev.bytes
        print(f"{name:40} {bits[name]:.4f}", flush=True)

    report("own text", own.model_.log_probabilities(dev))
    report("base", base.model_.log_probabilities(dev))
    sums = own.model_.sums + base.model_.sums
    larger = max(own.model_, base.model_, key=lambda model: model.counted_part.counts)
    whole = CalibratedModel.from_sums(own.config, larger.counted_part.encoder, sums)  # type: ignore[arg-type]
    report("merged counts", whole.log_probabilities(dev))
    grams = [KneserNey(model.ngrams, 5) for model in (own.model_, base.model_)]
    weights = linear_weights([model.log_probabilities(tune) for model in grams])
    report("5-grams, interpolated", interpolated([model.log_probabilities(dev) for model in grams], weights))
    begin = time.process_time()
    mixture = fitted_mixture([own.model_.counted_part, base.model_.counted_part], tune)
    seconds = time.process_time() - begin
    report("mixture", mixture.log_probabilities(dev))
    print(f"members: {', '.join(mixture.names)}; fitted in {seconds:.0f} s of CPU, on {tune.targets:,} tokens")
    if options.out:
        facts = json.loads(options.out.read_text()) if options.out.exists() else {}
        facts[options.own.name] = {"bits_per_byte": bits, "members": mixture.names, "dev_tokens": dev.targets}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


def linear_weights(log_p: Sequence[Floats], rounds: int = 100) -> Floats:
    """The constant weights that make targets most likely, by expectation maximization."""
    p = np.exp(np.stack(log_p))
    weights = np.full(len(p), 1 / len(p))
    for _ in range(rounds):
        shares = weights[:, None] * p
        weights = (shares / shares.sum(0)).mean(1)
    return weights


def interpolated(log_p: Sequence[Floats], weights: Floats) -> Floats:
    return np.asarray(np.log(weights @ np.exp(np.stack(log_p))))


if __name__ == "__main__":
    main()
