"""One model in several threads: readers agree with one that is alone, and no change is lost."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torture.harness import Attempt, forked, prepared, sentences

THREADS = 4


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made = prepared(place.parent / "made")
    while True:
        for name in ("model", "companion"):
            for work in (readers, writers):
                folder, seed = made[name], rng.getrandbits(32)
                ended = forked(lambda work=work, folder=folder, seed=seed: work(folder, random.Random(seed)))
                yield f"{name}, {work.__name__}", ended.problem((0,))


def readers(folder: Path, rng: random.Random) -> None:
    """Threads that score and generate with one model find what one thread finds."""
    from saffu import load

    texts = [sentences(rng, 20).splitlines() for _ in range(THREADS)]

    def read(lm: Any, number: int) -> list[object]:
        lines = texts[number]
        return [
            lm.score(lines).nll,
            lm.score(["\n".join(lines)], online=True).nll,
            [row.bits for row in lm.score_lines(lines[:5])],
            lm.generate(lines[0][:9], seed=number, max_tokens=6),
        ]

    expected = [read(load(folder), number) for number in range(THREADS)]
    shared = load(folder)
    found = together(lambda number: [read(shared, number) for _ in range(3)])
    assert found == [[one] * 3 for one in expected], (found, expected)


def writers(folder: Path, rng: random.Random) -> None:
    """Threads that update one model, and forget again, lose nothing."""
    from saffu import load

    lm = load(folder, check=True)
    lm.forget(["no such line"], skip_uncounted=True, drop_network=True)
    before = lm.trained_on_["documents"]
    texts = [sentences(rng, 3).splitlines() for _ in range(THREADS)]

    def change(number: int) -> int:
        lm.update(texts[number])
        if number % 2:
            lm.forget(texts[number], drop_network=True)
        return lm.trained_on_["documents"]

    together(change)
    expected = before + sum(len(text) for text in texts[::2])
    assert lm.trained_on_["documents"] == lm.ledger_.documents == expected, (lm.trained_on_, expected)


def together(work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns in several threads that start at once and take turns as often as Python allows."""
    start, results, errors = threading.Barrier(THREADS), dict[int, Any](), list[BaseException]()

    def one(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(THREADS)]


def main() -> None:
    """Readers in this process, whose kernels may be compiled with ThreadSanitizer."""
    made = prepared(Path(sys.argv[1]))
    for seed in range(3):
        for name in ("model", "companion"):
            readers(made[name], random.Random(seed))


if __name__ == "__main__":
    main()
