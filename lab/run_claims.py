"""The paper's claims about runs, each with a verdict computed from result files: tuning, training, vocabulary, cost.

A verdict needs the same order in every seed. An effect compares runs of the same seed; the spread is its standard
deviation over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from lab.claims import FAILS, GROSS, HOLDS, IN_PART, NEAR, OPEN, Verdict, both, compared, over_seeds
from saffu.experiments.reproduce import PRINTED_LOG, PRINTED_TEST, PRINTED_TEST_100M
from saffu.format import plural

Row = Mapping[str, Any]
PRINTED_VOCABULARIES = (26_693, 2_848)
PATIENCE = 8  # increases of held-out perplexity after which the paper stops
Measure = Callable[[Row, Row], tuple[bool, float, str]]
LEAST_REDUCTION = 5  # factor by which a vocabulary "shrinks" as the printed one did, by 9.4


def pairs_of(first: Iterable[Row], second: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Runs of the same seed."""
    others = {row["seed"]: row for row in second}
    return [(row, others[row["seed"]]) for row in first if row["seed"] in others]


def ratios(pairs: Iterable[tuple[Row, Row]], score: str = "best_dev_perplexity") -> list[float]:
    """How much the first of each pair is above the second, relatively."""
    return [float(first[score] / second[score] - 1) for first, second in pairs]


def tuning(rows: Iterable[Row]) -> Verdict:
    """Claim 8, from ten tunings fold after fold."""
    claim = "Tuning, which solves attention from V instead of V̂, improves on initialization (43.33 → 42.44, or 2.1%)."
    runs = [row for row in rows if row["radius"] == 8]
    if not runs:
        return Verdict(8, claim, OPEN, "Needs runs of `python -m lab tunings`.")
    stages = [list(row["dev_perplexities"].values()) for row in runs]
    first, last = (mean(found[place] for found in stages) for place in (0, -1))
    plain = mean(row["without_tuning"] for row in runs)
    tunings = len(stages[0]) - 1
    changes = [float(found[-1] / found[0] - 1) for found in stages]
    improves = max(changes) < 0
    beyond_text = all(found[-1] < row["without_tuning"] for found, row in zip(stages, runs, strict=True))
    verdict = HOLDS if improves and beyond_text else IN_PART if improves else FAILS
    evidence = (
        f"One fold of {runs[0]['fold_tokens']:,} tokens: {first:.2f}. After {tunings} tunings, each on a further fold: "
        f"{last:.2f}. All {tunings + 1} folds without tuning: {plain:.2f}."
    )
    if verdict == IN_PART:
        evidence += " It improves, but no more than the additional text does."
    paper = PRINTED_LOG["tune 10"] / PRINTED_LOG["init"] - 1
    tokens = min(row["tokens"] for row in runs)
    return Verdict(8, claim, verdict, evidence, paper_effect=paper, tokens=tokens, **over_seeds(changes))


def best_rate(rows: Iterable[Row], start: str, radius: int) -> list[Row]:
    """The runs of a start at its best learning rate, by mean dev perplexity over the seeds."""
    rates: dict[float, list[Row]] = {}
    for row in rows:
        if (row["start"], row["radius"]) == (start, radius):
            rates.setdefault(row["learning_rate"], []).append(row)
    return min(rates.values(), key=lambda runs: mean(run["best_dev_perplexity"] for run in runs), default=[])


def training(rows: Sequence[Row]) -> list[Verdict]:
    """Claims 9 and 10, from warm and cold starts of both radii."""
    claims = {
        9: "After a warm start, r = 8 (23.84) ends below r = 128 (30.35), and both below cold starts (63.98).",
        10: "Cold starts stop at the same perplexity for both radii (63.98).",
    }
    groups = {(start, r): best_rate(rows, start, r) for start in ("explicit", "random") for r in (8, 128)}
    if not all(groups.values()):
        return [Verdict(n, claim, OPEN, "Needs warm and cold starts of both radii.") for n, claim in claims.items()]
    scores = {key: [float(run["best_dev_perplexity"]) for run in runs] for key, runs in groups.items()}
    warm_wins = all(max(scores["explicit", r]) < min(scores["random", r]) for r in (8, 128))
    short_wins = max(scores["explicit", 8]) < min(scores["explicit", 128])
    verdict = HOLDS if warm_wins and short_wins else IN_PART if warm_wins or short_wins else FAILS
    evidence = "; ".join(
        f"{'warm' if start == 'explicit' else 'cold'}, r = {radius}: {described(found)}"
        for (start, radius), found in scores.items()
    )
    ninth = over_seeds(ratios(pairs_of(groups["explicit", 8], groups["random", 8])))
    tenth = over_seeds(ratios(pairs_of(groups["random", 128], groups["random", 8])))
    same = abs(tenth["effect"]) <= NEAR
    ratio = f"Cold, r = 128 is {compared(1 + tenth['effect'])} r = 8."
    paper = PRINTED_TEST["explicit-8"] / PRINTED_TEST["random-8"] - 1
    tokens = min(run["tokens"] for runs in groups.values() for run in runs)
    return [
        Verdict(9, claims[9], verdict, f"{evidence}.", paper_effect=paper, tokens=tokens, **ninth),
        Verdict(10, claims[10], HOLDS if same else FAILS, ratio, paper_effect=0.0, tokens=tokens, **tenth),
    ]


def described(scores: Sequence[float]) -> str:
    """
    >>> described([50.0, 52.0]), described([50.0])
    ('51.0 (50.0 to 52.0 over 2 seeds)', '50.0')
    """
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f} over {plural(len(scores), 'seed')})"


def large_text(rows: Iterable[Row]) -> Verdict:
    """Claim 11, from the paper's protocol: initialized on a tenth of the text, or on all of it."""
    claim = "A model that is initialized on a tenth of its text ends far above one that saw all of it (58.05, 23.84)."
    runs = [row for row in rows if row["run"] == "explicit-8" and row["learning_rate"] > 1e-4 and not changes(row)]
    pairs = pairs_of(*([row for row in runs if row["size"] == size] for size in ("100M", "10M")))
    if not pairs:
        return Verdict(11, claim, OPEN, "Needs `saffu reproduce logs` on one text with both sizes of the protocol.")
    effects = ratios(pairs, "test_perplexity")
    verdict = HOLDS if min(effects) >= GROSS else IN_PART if min(effects) >= 0.01 else FAILS
    tenth, whole = (mean(pair[place]["test_perplexity"] for pair in pairs) for place in (0, 1))
    evidence = f"Initialized on a tenth, it ends at a test perplexity of {tenth:.1f}; on eleven folds, at {whole:.1f}."
    paper = PRINTED_TEST_100M["explicit-8"] / PRINTED_TEST["explicit-8"] - 1
    tokens = min(run["tokens"] for run in runs)
    return Verdict(11, claim, verdict, evidence, paper_effect=paper, tokens=tokens, **over_seeds(effects))


def changes(run: Row) -> Mapping[str, Any]:
    """The settings of a run's model that differ from those of the study; older rows have none."""
    found: Mapping[str, Any] = run.get("settings", {})
    return found


def vocabulary(rows: Iterable[Row]) -> Verdict:
    """Claim 13, from the paper's protocol."""
    claim = "The vocabulary shrinks from 26,693 to 2,848 tokens."
    run = next(iter(rows), None)
    if run is None:
        return Verdict(13, claim, OPEN, "Needs a run of `saffu reproduce`.")
    before, after = run["full_vocabulary"], run["vocabulary"]
    alike = 0.5 <= after / PRINTED_VOCABULARIES[1] <= 2
    verdict = both(before / after >= LEAST_REDUCTION, alike)
    evidence = f"{before:,} → {after:,} tokens, by a factor of {before / after:.1f} (printed: 9.4)."
    paper = PRINTED_VOCABULARIES[1] / PRINTED_VOCABULARIES[0] - 1
    return Verdict(13, claim, verdict, evidence, after / before - 1, paper, tokens=run["text_tokens"])


def cost(rows: Sequence[Row]) -> Verdict:
    """Claim 15, from a warm and a cold start of r = 8 on the same machine, both at their best learning rates."""
    claim = "The explicit solution is cheaper than backpropagation."
    pairs = pairs_of(best_rate(rows, "explicit", 8), best_rate(rows, "random", 8))
    if not pairs:
        return Verdict(15, claim, OPEN, "Needs warm and cold starts of r = 8.")
    effects, evidence = zip(*(time_saved(warm, cold) for warm, cold in pairs), strict=True)
    verdict = HOLDS if max(effects) < 0 else FAILS
    return Verdict(15, claim, verdict, evidence[0], tokens=pairs[0][0]["tokens"], **over_seeds(effects))


def time_saved(warm: Row, cold: Row) -> tuple[float, str]:
    """The seconds of an explicit solution relative to those of a cold start that gets as far, and the same in words."""
    level = warm["curve"][0]["dev_perplexity"]
    seconds = warm["curve"][0]["seconds"]
    reached = next((point["seconds"] for point in cold["curve"] if point["dev_perplexity"] <= level), None)
    after = cold["curve"][-1]["seconds"] if reached is None else reached
    shared = "" if warm.get("alone") and cold.get("alone") else ", sharing the machine with other runs"
    got = "has not reached it after" if reached is None else "has reached it when it is scored after"
    return seconds / after - 1, (
        f"The explicit solution takes {seconds:.1f} s to reach a dev perplexity of {level:.1f}{shared}. "
        f"A cold start {got} {after:.1f} s."
    )


def stopping(rows: Sequence[Row]) -> list[Verdict]:
    """Claims 19 to 21, from runs of r = 8 that continue until held-out perplexity has risen eight times."""
    claims = {
        19: "With r = 8, training continues for more folds before it is stopped than with r = 128.",
        20: "After initialization on a tenth of the text, training is less stable.",
        21: "Starting from V̂ makes training faster than starting from uniform attention.",
    }
    runs = [row for row in rows if row["until_stopped"] and row["start"] == "explicit" and rises(row) >= PATIENCE]
    uniform = [row for row in runs if row["settings"].get("attention") == "uniform"]
    runs = [row for row in runs if row not in uniform]
    whole = [row for row in runs if row["radius"] == 8 and row["size"] == "10M"]
    long = [row for row in runs if row["radius"] == 128 and row["size"] == "10M"]
    tenth = [row for row in runs if row["radius"] == 8 and row["size"] == "100M"]
    folds = {19: pairs_of(whole, long), 20: pairs_of(tenth, whole), 21: pairs_of(tenth, uniform)}
    measures = {19: longer, 20: shorter, 21: sooner}
    return [compare_folds(number, claims[number], folds[number], measures[number]) for number in claims]


def compare_folds(number: int, claim: str, pairs: Sequence[tuple[Row, Row]], measure: Measure) -> Verdict:
    """The verdict of a measure on pairs of runs: whether it is positive for all of them, some, or none."""
    if not pairs:
        return Verdict(number, claim, OPEN, "Needs runs of `python -m lab protocol` that were stopped.")
    found = [measure(*pair) for pair in pairs]
    wins = sum(holds for holds, _, _ in found)
    verdict = HOLDS if wins == len(pairs) else IN_PART if wins else FAILS
    effects = over_seeds([effect for _, effect, _ in found])
    return Verdict(number, claim, verdict, found[0][2], tokens=pairs[0][0]["tokens"], **effects)


def longer(short: Row, long: Row) -> tuple[bool, float, str]:
    """Whether the first run was stopped after more folds, how much relatively, and the same in words."""
    folds = [curve_of(run)[-1]["fold"] for run in (short, long)]
    best = [min(row["dev_perplexity"] for row in curve_of(run)) for run in (short, long)]
    words = [f"{plural(count, 'fold')} (best {least:.1f})" for count, least in zip(folds, best, strict=True)]
    evidence = f"r = 8 is stopped after {words[0]}, r = 128 after {words[1]}."
    return folds[0] > folds[1], folds[0] / folds[1] - 1, evidence


def shorter(tenth: Row, whole: Row) -> tuple[bool, float, str]:
    """Whether held-out perplexity rises more often per fold in the first run."""
    folds = [curve_of(run)[-1]["fold"] for run in (tenth, whole)]
    evidence = (
        f"Held-out perplexity has risen {PATIENCE} times after {plural(folds[0], 'fold')}, or after {folds[1]} if all "
    )
    return folds[0] < folds[1], folds[1] / folds[0] - 1, f"{evidence}of the text was counted and tuned on."


def sooner(explicit: Row, uniform: Row) -> tuple[bool, float, str]:
    """Whether the first run reaches the best of the second in fewer folds."""
    curve = curve_of(uniform)
    best = min(curve, key=lambda row: float(row["dev_perplexity"]))
    reached = [row["fold"] for row in curve_of(explicit) if row["dev_perplexity"] <= best["dev_perplexity"]]
    level = f"{best['dev_perplexity']:.1f} after {plural(best['fold'], 'fold')}, its best"
    limit = plural(curve_of(explicit)[-1]["fold"], "fold")
    words = f"reaches it after {reached[0]}" if reached else f"does not reach it in {limit}"
    evidence = f"A start from uniform attention reaches {level}; one from V̂ {words}."
    own = min(float(row["dev_perplexity"]) for row in curve_of(explicit))
    evidence += f" The best from V̂ is {own:.1f}."
    return bool(reached) and reached[0] < best["fold"], own / best["dev_perplexity"] - 1, evidence


def curve_of(run: Row) -> list[Row]:
    """The folds of a run, beginning with its start."""
    return [row for row in run["log"] if "fold" in row]


def rises(run: Row) -> int:
    """How often held-out perplexity rose."""
    return int(curve_of(run)[-1]["rises"])
