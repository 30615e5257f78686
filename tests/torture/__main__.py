"""Run all attacks for some minutes and report: python -m torture --minutes 10 --seed 1 [--only kills,damage]"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ATTACKS = {
    "changes": 3,
    "kills": 3,
    "faults": 3,
    "interrupts": 1,
    "options": 1,
    "texts": 1,
    "damage": 1,
    "races": 1,
    "places": 1,
    "escapes": 1,
    "hostile_files": 1,
    "threads": 1,
    "full_disk": 1,
    "low_memory": 1,
    "on_ray": 2,
}
"""Each attack, and its share of the time."""


def run(names: list[str], minutes: float, seed: int, place: Path) -> dict[str, dict]:
    """Give each attack its turns until the time is over; returns what was tried and what went wrong."""

    reports = {name: {"attempts": Counter(), "problems": [], "seconds": 0.0} for name in names}
    attacks = {
        name: importlib.import_module(f"torture.{name}").attack(random.Random(seed), place / name) for name in names
    }
    for folder in names:
        (place / folder).mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    try:
        while attacks and time.monotonic() < end:
            name = min(attacks, key=lambda name: reports[name]["seconds"] / ATTACKS[name])
            began = time.monotonic()
            try:
                tried, wrong = next(attacks[name])
            except StopIteration:  # it needs what is not installed
                del attacks[name]
                continue
            except Exception as error:
                tried, wrong = "the attack itself", f"fails: {error!r}"
                del attacks[name]
            reports[name]["seconds"] += time.monotonic() - began
            reports[name]["attempts"][tried] += 1
            if wrong:
                reports[name]["problems"].append(f"{tried}: {wrong}".replace(str(place), "…"))
                print(f"{name}: {tried}: {wrong}", file=sys.stderr, flush=True)
    finally:
        for attack in attacks.values():
            attack.close()
    return reports


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """Figures of one attack, and each thing that went wrong."""
    tried, wrong = report["attempts"], report["problems"]
    return {"attempts": tried.total(), "problems": len(wrong), "seconds": round(report["seconds"]),
            "tried": dict(sorted(tried.items())), "wrong": wrong}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=None, help="random if not given")
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks to run")
    parser.add_argument("--out", type=Path, default=Path("torture.json"), help="report")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs would ignore it …
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # … and those under nohup this
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no disk mounted
    with tempfile.TemporaryDirectory(prefix="torture-") as place:
        reports = run(options.only.split(","), options.minutes, seed, Path(place))
    results = {name: summary(report) for name, report in reports.items()}
    found = {"date": time.strftime("%Y-%m-%d"), "minutes": options.minutes, "seed": seed}
    found |= {key: sum(result[key] for result in results.values()) for key in ("attempts", "problems")}
    options.out.write_text(json.dumps({**found, "attacks": results}, indent=1) + "\n")
    for name, result in results.items():
        print(
            f"{name:<18} {result['attempts']:>7,} attempts {result['problems']:>5,} problems {result['seconds']:>7} s"
        )
    print(f"seed {seed}; details in {options.out}")
    sys.exit(any(report["problems"] for report in reports.values()))


if __name__ == "__main__":
    main()
