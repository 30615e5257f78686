"""Writing to a disk that is too small. Needs the right to mount a file system in memory; otherwise nothing is tried."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from torture.harness import COMPANION, PAPER, QUICK, Attempt, command, documents, prepared, resumed
from torture.kills import absent_or, failed, left_behind


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, disk = prepared(place.parent / "made"), place / "disk"
    disk.mkdir(exist_ok=True)
    text, out = f"{made['train.txt']} --dev {made['dev.txt']} --split line", disk / "out"
    while True:
        size = rng.choice([rng.randint(4, 400), rng.randint(4, 4000)])
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode:
            yield "skipped: cannot mount", ""
            continue
        try:
            (disk / "scratch").mkdir()
            for name, (line, source, expected) in {
                "train": (f"train {text} --out {out} {QUICK}", None, 300),
                "train bounded": (f"train {text} --out {out} {QUICK} --memory-limit 4G", None, 300),
                "train companion": (f"train {text} --out {out} {COMPANION}", None, 300),
                "train paper": (f"train {text} --out {out} {PAPER}", None, 300),
                "resume": (resumed(made, out), made["stopped"], 300),
                "update": (f"update {out} {made['more.txt']}", made["model"], 340),
                "forget": (f"forget {out} {made['more.txt']}", made["both"], 300),
                "merge": (f"merge {made['model']} {made['other']} --out {out}", None, 340),
                "export": (f"export {made['companion']} --out {out}", None, 300),
                "export arpa": (f"export {made['model']} --to arpa --out {disk / 'arpa'}", None, 0),
                "ablate": (f"ablate {text} --out {disk / 'grid'} --blocks 2 --radii 2 --modes sum/cat", None, 0),
            }.items():
                if source and not copied(source, out):
                    continue
                ended = command(line, scratch=disk / "scratch")
                right = documents(source) if source and ended.status else expected
                sound = absent_or(lambda folder, right=right: documents(folder) == right)
                wrong = ended.problem() or failed(sound, out) or left_behind(disk / "scratch")
                left = [path.name for path in disk.iterdir() if path.name.startswith(".")]
                yield name, wrong or (f"left behind: {left}" if left else "")
                for path in disk.iterdir():
                    if path.name != "scratch":
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def copied(source: Path, target: Path) -> bool:
    try:
        shutil.copytree(source, target)
    except (shutil.Error, OSError):
        shutil.rmtree(target, ignore_errors=True)
        return False
    return True
