"""The folder of an ablation: facts about its text (text.json) and one line per finished cell (results.jsonl).

Every line is written whole and holds its own settings, text fingerprint, and checksum, so damage costs only the lines
it touches.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import SHAPE, SWEPT, CellKey, cell_settings, key_of, modes_of, title_of
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.writing import locked, recover

FORMAT = 3  # 2 did not say how a radius is filled
SAMPLES = ("train", "dev")
Losses = dict[str, dict[str, float]]
"""−Σ ln p by sample and cell."""


@dataclass(frozen=True)
class Cell:
    """One model of a grid with its scores, or the reason why it could not be fitted."""

    config: PaperConfig
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

    @property
    def title(self) -> str:
        """Of its table."""
        return title_of(self.modes, bool(self.config.document_shards))

    @property
    def shape(self) -> str:
        return f"{self.modes}, b = {self.config.block}, r = {self.config.radius}"

    @property
    def loss(self) -> float:
        """−Σ ln p of the held-out text; infinite for a cell that could not be fitted."""
        return self.dev.nll if self.dev else math.inf

    @property
    def perplexity(self) -> float:
        """Of the held-out text."""
        return self.dev.perplexity if self.dev else math.inf

    @property
    def perplexities(self) -> tuple[float, float] | None:
        """Train and dev perplexity; None for a cell that could not be fitted."""
        return (self.train.perplexity, self.dev.perplexity) if self.train and self.dev else None

    def facts(self) -> dict[str, Any]:
        """Settings and scores as JSON values."""
        facts: dict[str, Any] = {**cell_settings(self.config), "parameters": self.parameters}
        for name in SAMPLES:
            if score := getattr(self, name):
                facts |= {f"{name}_nll": score.nll, f"{name}_targets": score.targets, f"{name}_bytes": score.bytes}
                facts |= {f"{name}_perplexity": score.perplexity, f"{name}_bits_per_byte": score.bits_per_byte}
        return facts | {"least_attention": self.least_attention, "failure": self.failure}

    def to_line(self, text: str) -> str:
        """One line of JSON, without the newline."""
        facts = {"text": text, **self.facts()}
        return json.dumps(facts | {"checksum": checksum(facts)}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> tuple[str, Cell]:
        """The text's fingerprint and the cell; ValueError, KeyError, or TypeError if the line is damaged."""
        facts = json.loads(line)
        if not isinstance(facts, dict) or facts.pop("checksum") != checksum(facts):
            raise ValueError("checksum")
        config = PaperConfig(**{name: facts[name] for name in (*SHAPE, *SWEPT) if name in facts})  # others: as before
        values: dict[str, Any] = {
            name: Score(facts[f"{name}_nll"], facts[f"{name}_targets"], facts[f"{name}_bytes"])
            for name in SAMPLES
            if f"{name}_nll" in facts
        }
        values |= {name: facts[name] for name in ("parameters", "least_attention", "failure")}
        return facts["text"], cls(config, **values)


def cell_key(config: PaperConfig) -> str:
    return json.dumps(cell_settings(config))


def checksum(facts: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True).encode()):08x}"


def perplexities_of(cells: Iterable[Cell]) -> dict[CellKey, tuple[float, float]]:
    """Train and dev perplexities by shape, of the cells that could be fitted."""
    return {key_of(cell.config): scores for cell in cells if (scores := cell.perplexities)}


class Results:
    """The cells in a folder, by key."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "results.jsonl"
        self.run = self._read_run()
        self._read_cells()

    def clean_up(self) -> None:
        """Remove what a killed writer has left. The caller holds the lock of the folder."""
        units = (self.folder / "units").glob("*.safetensors")
        for path in (self.folder / "text.json", self.path, self._unfinished, *units):
            with locked(path, wait=True):
                recover(path)

    def _read_run(self) -> dict[str, Any]:
        path = self.folder / "text.json"
        if not path.is_file():
            return {}
        try:
            run = json.loads(path.read_text("utf-8"))
            version = int(run["format"])
            _ = str(run["text"])
            if not isinstance(run["runs"], list):
                raise TypeError("runs")
        except (ValueError, KeyError, TypeError):
            raise SaffuError(f"{path} is damaged; delete it and run `saffu ablate` again with the same text") from None
        if version != FORMAT:
            raise SaffuError(f"{self.folder} has format {version}, this saffu needs {FORMAT}; use another folder")
        return dict(run)

    def _read_cells(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.damaged: list[int] = []  # line numbers
        self.foreign = 0  # lines that belong to another text than text.json's
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
        """Warnings about the state of the file."""
        notes = []
        if self.damaged:
            lines = ", ".join(str(number) for number in self.damaged[:10]) + (" …" if len(self.damaged) > 10 else "")
            notes.append(f"{self.path} is damaged at line {lines}; skipping these cells")
        if self.foreign:
            notes.append(f"{self.path} has {self.foreign} cells of another text; skipping them")
        return notes

    def begin(self, facts: dict[str, Any]) -> None:
        """Claim the folder for a text. Raises SaffuError if it holds cells of another one."""
        if self.run and self.run["text"] != facts["text"]:
            raise SaffuError(
                f"{self.folder} holds an ablation of different text, tokenizer, or sample sizes; use another folder"
            )
        if not self.run and (self._unfinished.exists() or (self.damaged and not self.cells)):
            raise SaffuError(f"{self.folder} holds files that are not of an ablation; use another folder")
        self.run = {"format": FORMAT, **facts, "runs": self.run.get("runs", [])}
        self.save_run()
        self._read_cells()

    def save_run(self) -> None:
        content = json.dumps(self.run, indent=2, ensure_ascii=False) + "\n"
        files.write_file(self.folder / "text.json", content.encode())

    def drop_damaged(self) -> None:
        """Rewrite results.jsonl without its damaged lines."""
        if self.damaged:
            lines = self.path.read_bytes().split(b"\n")
            intact = [line + b"\n" for n, line in enumerate(lines, 1) if line.strip() and n not in self.damaged]
            files.write_file(self.path, b"".join(intact))
            self.damaged = []

    def append(self, cells: Sequence[Cell]) -> None:
        """Add finished cells and flush them to disk."""
        lines = "".join(cell.to_line(self.run["text"]) + "\n" for cell in cells).encode()
        with self.path.open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # ends a line that was cut short when its writer was killed
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self.cells |= {cell.key: cell for cell in cells}

    # Losses of cells that are being scored: an interruption then costs one stretch of targets, not all of them.

    @property
    def _unfinished(self) -> Path:
        return self.folder / "unfinished.json"

    def save_unfinished(self, done: int, stretch: int, losses: Losses) -> None:
        facts = {"text": self.run["text"], "done": done, "stretch": stretch, "losses": losses}
        files.write_file(self._unfinished, json.dumps(facts | {"checksum": checksum(facts)}).encode())

    def unfinished(self, keys: Iterable[str], stretch: int) -> tuple[int, Losses] | None:
        """How many stretches of that length are done, and the losses; None unless they are of exactly these cells."""
        try:
            facts = json.loads(self._unfinished.read_text("utf-8"))
            intact = facts.pop("checksum") == checksum(facts)
            fitting = facts["text"] == self.run["text"] and facts["stretch"] == stretch
            if intact and fitting and all(facts["losses"][name].keys() == set(keys) for name in SAMPLES):
                return facts["done"], facts["losses"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    def drop_unfinished(self) -> None:
        self._unfinished.unlink(missing_ok=True)
