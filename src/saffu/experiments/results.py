"""The folder of an ablation: what text it is of (run.json) and a line for each finished cell (cells.jsonl).

Every line is whole and tells its own settings, text and checksum: a damaged one is noticed and costs itself only.
"""

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from saffu import store
from saffu.config import SaffuConfig
from saffu.errors import SaffuError
from saffu.evaluate import Score
from saffu.grid import SHAPE, SWEPT, cell_settings, modes_of

FORMAT = 1
SAMPLES = ("train", "dev")
Sums = dict[str, dict[str, float]]  # −Σ ln p by sample and cell


@dataclass(frozen=True)
class Cell:
    """One model of a grid, and how well it predicts; or why it could not be fitted."""

    config: SaffuConfig
    parameters: int
    train: Score | None = None
    dev: Score | None = None
    least_attention: float | None = None  # smallest entry of F(Q, V) in its units, per target
    failure: str | None = None

    @cached_property
    def key(self) -> str:
        return cell_key(self.config)

    @property
    def modes(self) -> str:
        return modes_of(self.config)

    def to_line(self, text: str) -> str:
        """One line of JSON, without its end."""
        facts: dict[str, Any] = {"text": text, **cell_settings(self.config), "parameters": self.parameters}
        for name in SAMPLES:
            if score := getattr(self, name):
                facts |= {f"{name}_nll": score.nll, f"{name}_targets": score.targets, f"{name}_bytes": score.bytes}
                facts |= {f"{name}_perplexity": score.perplexity, f"{name}_bits_per_byte": score.bits_per_byte}
        facts |= {"least_attention": self.least_attention, "failure": self.failure}
        return json.dumps(facts | {"checksum": checksum(facts)}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> tuple[str, "Cell"]:
        """The text's fingerprint and the cell; ValueError, KeyError or TypeError if the line is damaged."""
        facts = json.loads(line)
        if not isinstance(facts, dict) or facts.pop("checksum") != checksum(facts):
            raise ValueError("checksum")
        config = SaffuConfig(**{name: facts[name] for name in (*SHAPE, *SWEPT)})
        told: dict[str, Any] = {
            name: Score(facts[f"{name}_nll"], facts[f"{name}_targets"], facts[f"{name}_bytes"])
            for name in SAMPLES
            if f"{name}_nll" in facts
        }
        told |= {name: facts[name] for name in ("parameters", "least_attention", "failure")}
        return facts["text"], cls(config, **told)


def cell_key(config: SaffuConfig) -> str:
    return json.dumps(cell_settings(config))


def checksum(facts: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True).encode()):08x}"


class Results:
    """The cells in a folder, by key."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "cells.jsonl"
        self.run = self._read_run()
        self._read_cells()

    def _read_run(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not path.is_file():
            return {}
        try:
            run = json.loads(path.read_text("utf-8"))
            version, _ = int(run["format"]), str(run["text"])
            if not isinstance(run["runs"], list):
                raise TypeError("runs")
        except (ValueError, KeyError, TypeError):
            raise SaffuError(f"{path} is damaged; delete it, and `saffu ablate` with the same text goes on") from None
        if version > FORMAT:
            raise SaffuError(f"{self.folder} has format {version}, newer than this saffu's {FORMAT}; upgrade saffu")
        return dict(run)

    def _read_cells(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.damaged: list[int] = []  # numbers of lines
        self.foreign = 0  # lines of another text than run.json's
        lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text, cell = Cell.from_line(line.decode())
            except (ValueError, KeyError, TypeError, RecursionError):
                self.damaged.append(number)
                continue
            if text == self.run.get("text", text):
                self.cells[cell.key] = cell
            else:
                self.foreign += 1

    @property
    def notes(self) -> list[str]:
        """What a person should know about the file."""
        notes = []
        if self.damaged:
            lines = ", ".join(str(number) for number in self.damaged[:10]) + (" …" if len(self.damaged) > 10 else "")
            notes.append(f"{self.path} is damaged at line {lines}; these cells are left out, the rest is kept")
        if self.foreign:
            notes.append(f"{self.path} has {self.foreign} cells of another text; they are left out")
        return notes

    def begin(self, facts: dict[str, Any]) -> None:
        """Claim the folder for a text; refuse one that holds cells of another."""
        if self.run and self.run["text"] != facts["text"]:
            raise SaffuError(
                f"{self.folder} holds an ablation of other text, another tokenizer or another share of it; "
                "choose another folder"
            )
        self.run = {"format": FORMAT, **facts, "runs": self.run.get("runs", [])}
        self.save_run()
        self._read_cells()

    def save_run(self) -> None:
        store.write_file(self.folder / "run.json", (json.dumps(self.run, indent=2, ensure_ascii=False) + "\n").encode())

    def drop_damaged(self) -> None:
        """Write cells.jsonl anew without its damaged lines."""
        if self.damaged:
            lines = self.path.read_bytes().split(b"\n")
            sound = [line + b"\n" for n, line in enumerate(lines, 1) if line.strip() and n not in self.damaged]
            store.write_file(self.path, b"".join(sound))
            self.damaged = []

    def append(self, cells: Sequence[Cell]) -> None:
        """Add finished cells, durably."""
        lines = "".join(cell.to_line(self.run["text"]) + "\n" for cell in cells).encode()
        with self.path.open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # the end of a line that a kill cut short
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self.cells |= {cell.key: cell for cell in cells}

    # Sums of cells that are being scored: an interruption then costs a stretch of targets, not all of them.

    @property
    def _partial(self) -> Path:
        return self.folder / "partial.json"

    def save_partial(self, done: int, stretch: int, sums: Sums) -> None:
        facts = {"text": self.run["text"], "done": done, "stretch": stretch, "sums": sums}
        store.write_file(self._partial, json.dumps(facts | {"checksum": checksum(facts)}).encode())

    def partial(self, keys: Iterable[str], stretch: int) -> tuple[int, Sums] | None:
        """How many stretches of that length are done, and the sums; None if they are of other cells or none."""
        try:
            facts = json.loads(self._partial.read_text("utf-8"))
            sound = facts.pop("checksum") == checksum(facts)
            fitting = facts["text"] == self.run["text"] and facts["stretch"] == stretch
            if sound and fitting and all(facts["sums"][name].keys() == set(keys) for name in SAMPLES):
                return facts["done"], facts["sums"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    def drop_partial(self) -> None:
        self._partial.unlink(missing_ok=True)
