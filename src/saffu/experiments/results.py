"""The folder of an ablation: facts about its text (text.json) and one line per finished cell (results.jsonl).

Every line is written whole and holds its own settings, text fingerprint, and checksum, so damage costs only the lines
it touches.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import SHAPE, SWEPT, CellKey, cell_settings, key_of, modes_of, title_of
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.writing import locked, sweep

FORMAT = 3  # 2 did not say how a radius is filled
SAMPLES = ("train", "dev")
Losses = dict[str, dict[PaperConfig, float]]
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
    def perplexity(self) -> float:
        """Of the held-out text; infinite for a cell that could not be fitted."""
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

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Cell:
        """The inverse; settings that the facts lack have their defaults."""
        values: dict[str, Any] = {
            name: Score(facts[f"{name}_nll"], facts[f"{name}_targets"], facts[f"{name}_bytes"])
            for name in SAMPLES
            if f"{name}_nll" in facts
        }
        config = PaperConfig(**{name: facts[name] for name in (*SHAPE, *SWEPT) if name in facts})
        values |= {name: facts[name] for name in ("parameters", "least_attention", "failure")}
        return cls(config, **values)


def perplexities_of(cells: Iterable[Cell]) -> dict[CellKey, tuple[float, float]]:
    """Train and dev perplexities by shape, of the cells that could be fitted."""
    return {key_of(cell.config): scores for cell in cells if (scores := cell.perplexities)}


def checksum(facts: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(facts, sort_keys=True).encode()):08x}"


class Results:
    """The cells in a folder, by their settings."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "results.jsonl"
        self.unfinished = folder / "unfinished.json"
        self.run = self._read_run()
        self.text = self.run.get("text")  # without text.json, that of the first line
        self.cells: dict[PaperConfig, Cell] = {}
        self.damaged: list[int] = []  # line numbers
        lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
        for number, line in enumerate(lines, 1):
            if line.strip() and not self._read_line(line):
                self.damaged.append(number)

    def _read_run(self) -> dict[str, Any]:
        path = self.folder / "text.json"
        if not path.is_file():
            return {}
        try:
            run = json.loads(path.read_text("utf-8"))
            version = run["format"]
            run = {**run, "text": str(run["text"]), "runs": list(run["runs"])}
        except (ValueError, KeyError, TypeError):
            raise SaffuError(f"{path} is damaged; delete it and run `saffu ablate` again with the same text") from None
        if version != FORMAT:
            raise SaffuError(f"{self.folder} has format {version}, this saffu needs {FORMAT}; use another folder")
        return run

    def _read_line(self, line: bytes) -> bool:
        """Whether the line is an intact cell of this text."""
        try:
            facts = dict(json.loads(line))
            if facts.pop("checksum") != checksum(facts) or facts["text"] != (self.text or facts["text"]):
                return False
            cell = Cell.from_facts(facts)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        self.cells[cell.config] = cell
        self.text = facts["text"]
        return True

    @property
    def damage(self) -> str:
        """A warning about lines that could not be read, if there are any."""
        lines = ", ".join(str(number) for number in self.damaged[:10]) + (" …" if len(self.damaged) > 10 else "")
        return f"{self.path} is damaged at line {lines}; skipping these cells" if lines else ""

    def clean_up(self) -> None:
        """Remove what a killed writer has left. The caller holds the lock of the folder."""
        units = (self.folder / "units").glob("*.safetensors")
        for path in (self.folder / "text.json", self.path, self.unfinished, *units):
            with locked(path, wait=True):
                sweep(path)

    def require_text(self, text: str) -> None:
        """Fail if the folder holds cells of another text, or files that are not of an ablation."""
        if self.text and self.text != text:
            raise SaffuError(
                f"{self.folder} holds an ablation of different text, tokenizer, or sample sizes; use another folder"
            )
        if not self.run and (self.unfinished.exists() or (self.damaged and not self.cells)):
            raise SaffuError(f"{self.folder} holds files that are not of an ablation; use another folder")

    def save_run(self, facts: dict[str, Any]) -> None:
        """Write text.json: what is known of the text, and the runs so far."""
        self.run = {"format": FORMAT, **facts, "runs": facts.get("runs", [])}
        content = json.dumps(self.run, indent=2, ensure_ascii=False) + "\n"
        files.write_file(self.folder / "text.json", content.encode())

    def append(self, cells: Sequence[Cell]) -> None:
        """Add finished cells; damaged lines are dropped."""
        self.cells |= {cell.config: cell for cell in cells}
        lines = []
        for cell in self.cells.values():
            facts = {"text": self.run["text"], **cell.facts()}
            lines.append(json.dumps(facts | {"checksum": checksum(facts)}, ensure_ascii=False) + "\n")
        files.write_file(self.path, "".join(lines).encode())
        self.damaged = []

    def save_unfinished(self, done: int, stretch: int, losses: Losses) -> None:
        """Keep the losses of cells that are being scored: an interruption costs one stretch of targets, not all."""
        values = {name: list(by_cell.values()) for name, by_cell in losses.items()}
        facts = {"work": self._work(stretch, losses), "done": done, "losses": values}
        files.write_file(self.unfinished, json.dumps(facts | {"checksum": checksum(facts)}).encode())

    def load_unfinished(self, stretch: int, losses: Losses) -> int:
        """The number of stretches that are done already; their losses replace those passed, if of the same cells."""
        try:
            facts = json.loads(self.unfinished.read_text("utf-8"))
            if facts.pop("checksum") != checksum(facts) or facts["work"] != self._work(stretch, losses):
                return 0
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return 0
        for name, values in facts["losses"].items():
            losses[name] = dict(zip(losses[name], values, strict=True))
        return int(facts["done"])

    def _work(self, stretch: int, losses: Losses) -> list[Any]:
        """What is being scored: this text in stretches of this length, and these cells."""
        return [self.run["text"], stretch, [cell_settings(config) for config in losses["dev"]]]
