"""Log lines that stand out: how many planted ones are among the most surprising, next to KenLM and plain counting.

    python benchmarks/logs.py --out docs/results/logs.json

The script writes the log of a web shop on two days. On the second, 50 lines of 20,000 are planted: failures that were
never logged before, known messages with values that make no sense, and known messages under the wrong name. A method
ranks the lines of the second day, given those of the first; what counts is how many planted lines are in its top 50.
KenLM reads the 5-gram model of the same tokens. Needs kenlm.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import kenlm
import numpy as np

from saffu import SaffuLM
from saffu.tools.arpa import token_names, write_arpa

LINES = 20_000
PLANTED = 50
SYLLABLES = ["an", "be", "car", "da", "el", "fe", "gre", "hu", "in", "jo", "ka", "lu", "ma", "ni", "ol", "pa"]
ITEMS = ["lamp", "chair", "table", "shelf", "carpet", "mirror", "clock", "vase", "curtain", "pillow"]
PAGES = ["/", "/cart", "/login", "/search?q={item}", "/item/{item}", "/checkout", "/static/style.css"]
USUAL = {  # by name of the component: messages, the more frequent first
    "web": [
        "GET {page} 200 {ms} ms user={user}",
        "GET {page} 304 {ms} ms user={user}",
        "POST /cart 200 {ms} ms user={user}",
    ],
    "auth": ["login of {user} from 10.0.{byte}.{byte} succeeded", "wrong password for {user} from 10.0.{byte}.{byte}"],
    "shop": ["order {order}: {n} x {item} for {user}, {price} EUR", "stock of {item} is low: {n} left"],
    "mail": ["confirmation of order {order} sent to {user}@example.org", "queue has {n} messages"],
    "cron": ["backup finished: {ms} files in {n} s", "cache cleared, {ms} entries"],
}
NEW = [  # messages that were never logged before
    "disk /dev/sda1 is full, cannot write /var/lib/shop/orders.db",
    "Traceback (most recent call last): KeyError: '{item}'",
    "connection to database lost after {ms} ms, retrying",
    "GET /item/{item}'%20OR%20'1'='1 500 {ms} ms user={user}",
    "GET /../../etc/passwd 400 {ms} ms user=-",
    "certificate of example.org expires in {n} days",
    "worker {order} killed by signal 9",
    "out of memory: cannot allocate {order} bytes",
]
ODD = {  # known messages with values that make no sense
    "order {order}: -{n} x {item} for {user}, -{price} EUR": "shop",
    "login of root from 203.0.113.{byte} succeeded": "auth",
    "GET /checkout 200 {order}{order} ms user={user}": "web",
    "queue has {order}{order} messages": "mail",
    "backup finished: 0 files in 0 s": "cron",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    yesterday = [usual_line(rng) for _ in range(LINES)]
    today, kinds = planted_log(rng)
    results = {"lines": LINES, "planted": PLANTED, "methods": {}}
    for method, score in methods(yesterday).items():
        top = np.argsort(-np.array(score(today)), kind="stable")[: 2 * PLANTED]
        found = {kind: sum(kinds[n] == kind for n in top[:PLANTED]) for kind in ("new", "odd", "misplaced")}
        in_top_100 = sum(kinds[n] != "usual" for n in top)
        results["methods"][method] = {"top_50": sum(found.values()), "top_100": in_top_100, "by_kind": found}
        print(f"{method:36} {results['methods'][method]}")
    results["by_kind"] = {kind: kinds.count(kind) for kind in ("new", "odd", "misplaced")}
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def planted_log(rng: random.Random) -> tuple[list[str], list[str]]:
    """Lines of a log, and the kind of each: "usual", or that of a planted one."""
    log = [usual_line(rng) for _ in range(LINES - PLANTED)]
    kinds = ["usual"] * len(log)
    for number in range(PLANTED):
        kind = ("new", "odd", "misplaced")[number % 3]
        place = rng.randrange(len(log) + 1)
        log.insert(place, planted_line(rng, kind))
        kinds.insert(place, kind)
    return log, kinds


def usual_line(rng: random.Random) -> str:
    component = rng.choices(list(USUAL), weights=[70, 10, 12, 6, 2])[0]
    messages = USUAL[component]
    return line(rng, component, rng.choices(messages, weights=range(3 * len(messages), 0, -3))[0])


def planted_line(rng: random.Random, kind: str) -> str:
    component = rng.choice(list(USUAL))
    if kind == "new":
        return line(rng, component, rng.choice(NEW))
    if kind == "odd":
        message = rng.choice(list(ODD))
        return line(rng, ODD[message], message)
    other = rng.choice([name for name in USUAL if name != component])
    return line(rng, component, rng.choice(USUAL[other]))


def line(rng: random.Random, component: str, message: str) -> str:
    """A line of the log: time, component, and a message with its blanks filled in."""
    numbers = {"ms": rng.randint(3, 900), "n": rng.randint(1, 9), "order": rng.randint(10_000, 99_999)}
    names = {
        "user": "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))),
        "item": rng.choice(ITEMS),
        "price": f"{rng.uniform(5, 300):.2f}",
    }
    page = rng.choice(PAGES).format(**names)
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return f"{time} {component}: " + message.format(page=page, byte=rng.randrange(256), **numbers, **names)


def methods(yesterday: Sequence[str]) -> dict[str, Callable[[Sequence[str]], list[float]]]:
    """Scores of lines, the higher the more surprising, by method."""
    lm = SaffuLM().fit(yesterday)
    return {
        "saffu, bits per byte": lambda lines: [score.bits_per_byte for score in lm.score_lines(lines)],
        "KenLM, bits per byte": kenlm_scorer(lm),
        "rare lines, all digits alike": unseen(yesterday),
    }


def kenlm_scorer(lm: SaffuLM) -> Callable[[Sequence[str]], list[float]]:
    """Bits per byte by the 5-gram model of the same tokens, in KenLM."""
    names = token_names(lm.tokenizer_)
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(lm.references_, lm.tokenizer_, Path(folder) / "model.arpa", 5)
        model = kenlm.Model(str(Path(folder) / "model.arpa"))

    def score(lines: Sequence[str]) -> list[float]:
        texts = [" ".join(names[token] for token in ids) for ids in lm.tokenizer_.encode_batch(list(lines))]
        return [-model.score(text) / (len(line.encode()) + 1) for text, line in zip(texts, lines, strict=True)]

    return score


def unseen(yesterday: Sequence[str]) -> Callable[[Sequence[str]], list[float]]:
    """Lines whose form, with all digits alike, did not occur the day before; then the rarest ones."""
    known = Counter(re.sub(r"\d+", "0", text) for text in yesterday)
    return lambda lines: [-known[re.sub(r"\d+", "0", text)] for text in lines]


if __name__ == "__main__":
    main()
