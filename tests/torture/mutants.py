"""Folders whose arrays were changed and signed again, read by kernels that are compiled with sanitizers.

python -m torture.mutants --prepare FOLDER                   # models, made without sanitizers
python -m torture.mutants FOLDER --number 1000 [--seed 1]    # with them: see `make test-sanitized`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from damage import GOLDEN, TABLE
from saffu import SaffuLM
from torture.damage import damaged
from torture.harness import forked, prepared

ROWS = [row for row in TABLE if row.signed and row.file.endswith((".safetensors", "config.json"))]
FOUND = ("AddressSanitizer", "runtime error:", "ThreadSanitizer")


def models(place: Path) -> list[Path]:
    """Counted, and with networks; none needs torch, which sanitizers do not know."""
    made = prepared(place)
    return [*(made[name] for name in ("model", "companion", "int8")), GOLDEN]


def uses(folder: Path, rng: random.Random) -> list[Callable[[], object]]:
    """What can be done with a model: read in the order of a text, with and without memory, one token at a time."""
    from saffu import load

    lm = load(folder, check=rng.random() < 0.5)
    words = ["the", "a", "and", "dog", "cat", "king", "sea", "ship", "wave", "wind", ".", "xyz", "é"]
    lines = [" ".join(rng.choices(words, k=12)) for _ in range(40)]
    return [
        lambda: lm.score(lines),
        lambda: lm.score(["\n".join(lines * 3)], online=True),
        lambda: lm.score_lines(lines[:5]),
        lambda: lm.surprisals(lines[0]),
        lambda: lm.generate("the", seed=1, max_tokens=8),
        lambda: lm.generate("the dog", temperature=0.0, max_tokens=8),
        lambda: lm.generate_batch(["a", "the"], top_k=3, top_p=0.9, max_tokens=8, seed=2),
        lambda: lm.explain("the dog and"),
        lambda: lm.complete_word("the k", 5),
        lambda: lm.next(lm.start("the king")),
        lambda: lm.word_vectors_,
        lambda: lm.reference_scores(lines[:10]),
        *(partial(predict, lm, lines, change) for change in (lambda: lm.update(lines[:3]), lambda: lm.merge(lm))),
        partial(predict, lm, lines, lambda: lm.forget(lines[:3], drop_network=True)),
    ]


def predict(lm: SaffuLM, lines: Sequence[str], change: Callable[[], object]) -> None:
    """Change a model, whose tables are solved from its counts, and predict with them."""
    found = change()
    for changed in (lm, found):
        if isinstance(changed, type(lm)):
            changed.score(lines)
            changed.next(changed.start(lines[0]))
            changed.explain(lines[1])
            changed.complete_word("the k", 3)


def read(folder: Path, seed: int) -> None:
    """Use a model in every way; each may be refused."""
    from saffu import SaffuError

    try:
        every = uses(folder, random.Random(seed))
    except SaffuError:
        return
    for use in every:
        with contextlib.suppress(SaffuError, MemoryError):
            use()


def attempt(model: Path, folder: Path, rng: random.Random) -> tuple[str, str]:
    """Change a model and read it; what was changed, and what is wrong."""
    _, what = damaged(model, folder, ROWS, rng)
    seed = rng.getrandbits(32)
    what = f"{model.parent.name}/{model.name}: {what} (seed {seed})"
    ended = forked(lambda: read(folder, seed), limit=120)
    wrong = ended.problem((0,), megabytes=4000) or next((name for name in FOUND if name in ended.err), "")
    return what, wrong and f"{wrong}: {ended.err[-3000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture.mutants", description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="random if not given")
    parser.add_argument("--out", type=Path, help="report")
    options = parser.parse_args()
    ready = models(options.place)
    if options.prepare:
        return
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    rng, tried, problems = random.Random(seed), Counter[str](), list[str]()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        for number in range(options.number):
            model = ready[number % len(ready)]
            what, wrong = attempt(model, Path(place) / "folder", rng)
            tried[what.split(":")[0]] += 1
            if wrong:
                problems.append(f"{what}: {wrong}")
                print(problems[-1], flush=True)
    print(f"{tried.total():,} folders, {len(problems)} problems, seed {seed}: {dict(tried)}")
    if options.out:
        found = {"date": time.strftime("%Y-%m-%d"), "seed": seed, "folders": tried.total(), "problems": len(problems)}
        found |= {"tried": dict(sorted(tried.items())), "wrong": problems}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
