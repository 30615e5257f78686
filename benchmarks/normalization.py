"""Whether predictions are distributions: sums of p over the vocabulary at random places of a text.

    python benchmarks/normalization.py MODEL --text FILES [--places 200] [--out results.json]

A cache or a mixture whose probabilities do not sum to one can seem to predict well. Here every token that can follow is
added up, with the memory of the document before the place and without it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from saffu import load
from saffu.text.sources import find_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--places", type=int, default=200, metavar="N")
    parser.add_argument("--longest", type=int, default=20_000, metavar="N", help="tokens before a place at most")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    options = parser.parse_args()
    lm, rng = load(options.model), np.random.default_rng(0)
    documents = [Path(path).read_text("utf-8") for path in find_files(options.text)]
    tokens = [lm.encode(document) for document in documents]
    sizes = np.array([len(ids) for ids in tokens])
    models = {"with memory": lm.model_, "without": lm.model_.without_memory()}
    sums: dict[str, list[float]] = {name: [] for name in models}
    for document in rng.choice(len(tokens), size=options.places, p=sizes / sizes.sum()):
        place = int(rng.integers(sizes[document]))
        context = tokens[document][max(0, place - options.longest) : place]
        for name, model in models.items():
            if model is not None:
                (log_p,) = model.next_log_probabilities([model.start(context)])
                sums[name].append(float(np.exp(log_p.astype(np.float64)).sum()))
    rows = {
        name: {"places": len(values), "largest_difference": float(np.abs(np.array(values) - 1).max())}
        for name, values in sums.items()
        if values
    }
    for name, row in rows.items():
        print(f"{name:<12} {row['places']} places, |sum − 1| at most {row['largest_difference']:.1e}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
