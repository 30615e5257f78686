"""Writing to a disk that is too small. Needs the right to mount a file system in memory; otherwise nothing is tried."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from torture.harness import PAPER, QUICK, Attempt, command, documents, prepared


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, disk = prepared(place.parent / "made"), place / "disk"
    disk.mkdir(exist_ok=True)
    text = f"{made['train.txt']} --split line"
    while True:
        size = rng.randint(4, 2500)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode:
            yield "skipped: cannot mount", ""
            continue
        try:
            (disk / "scratch").mkdir()
            for name, line in {
                "train": f"train {text} --out {disk / 'model'} {QUICK}",
                "train bounded": f"train {text} --out {disk / 'bounded'} {QUICK} --memory-limit 4G",
                "train paper": f"train {text} --out {disk / 'network'} {PAPER}",
                "update": f"update {disk / 'copy'} {made['more.txt']}",
                "ablate": f"ablate {text} --out {disk / 'grid'} --blocks 2 --radii 2 --modes sum/cat",
            }.items():
                if name == "update" and not copied(made["model"], disk / "copy"):
                    continue
                ended = command(line, scratch=disk / "scratch")
                wrong = ended.problem()
                if not wrong and name == "update" and documents(disk / "copy") != (340 if ended.status == 0 else 300):
                    wrong = "the model was changed"
                left = [path.name for path in disk.iterdir() if "writing" in path.name]
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
