"""The choice of text: which files are read and how, what is held out of them, and both as token ids."""

from __future__ import annotations

import filecmp
import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.format import plural, warn
from saffu.text.corpus import Line, TokenCorpus, lines_of
from saffu.text.default_corpus import default_corpus
from saffu.text.documents import bad_sources, hold_out, read_lines
from saffu.text.records import Skipped
from saffu.text.sources import Source, Sources, other_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

STDIN = "-"


@dataclass(frozen=True)
class Reading:
    """How files become documents."""

    split: str
    field: str | None = None
    encoding_errors: str = "strict"
    bad_records: str = "error"
    skip_bad_files: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `read_lines`."""
        return {
            "split": self.split,
            "field": self.field,
            "errors": self.encoding_errors,
            "bad_records": self.bad_records,
        }


class Text:
    """Some text; iterate over its lines as often as needed. Without names it is the English that ships with Python."""

    def __init__(self, names: Sequence[str], how: Reading):
        self.how = how
        self.skipped: dict[str, Skipped] = {}
        self.sources = Sources(names) if names else None
        self.default = None if names else list(default_corpus())  # gathering takes longer than tokenizing
        if others := other_files(names):
            shown = ", ".join(file.name for file in others[:3]) + (", …" if len(others) > 3 else "")
            warn(f"did not read {plural(len(others), 'file')} of unknown format ({shown}); name them to read them")

    def leave_out_bad_files(self) -> None:
        """If they are to be skipped, do not read files that cannot be read to their end."""
        if self.how.skip_bad_files and self.sources is not None:
            bad = bad_sources(self.sources, **self.how.arguments)
            self.sources.leave_out(bad)
            warn_of_bad_files(bad)

    def __iter__(self) -> Iterator[Line]:
        if self.sources is None:
            return lines_of(self.default or [])
        return read_lines(self.sources, skipped=self.skipped, **self.how.arguments)

    def __enter__(self) -> Text:
        self.leave_out_bad_files()
        return self

    def __exit__(self, *_: object) -> None:
        if self.sources is not None:
            self.sources.close()

    def warn_of_skipped(self) -> None:
        for name, skipped in self.skipped.items():
            warn(f"{name}: skipped {skipped}")


def warn_of_bad_files(bad: Mapping[str, str]) -> None:
    for reason in bad.values():
        warn(f"skipped a file: {reason.rsplit('; ', 1)[0]}")  # without the remedy
    if bad:
        warn(f"skipped {plural(len(bad), 'bad file')}")


@dataclass(frozen=True)
class TextSelection:
    """Which text a model is fitted to and which is held out; stored with a run, so that it can be resumed."""

    text: tuple[str, ...]
    dev: tuple[str, ...]
    hold_out: int  # every how many documents, if `dev` names no text; 0 for none
    max_tokens: int | None
    reading: Reading

    def __post_init__(self) -> None:
        if STDIN in self.text and STDIN in self.dev:
            raise SaffuError("standard input cannot be both training and held-out text; pass a file for one of them")

    @classmethod
    def of(
        cls, text: Sequence[str], dev: Sequence[str], hold_out: int, max_tokens: int | None, reading: Reading
    ) -> TextSelection:
        """Text named by files, folders, and globs; nothing is held out of it if `dev` names any."""
        return cls(tuple(text), tuple(dev), 0 if dev else hold_out, max_tokens, reading)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self, dev: TokenCorpus) -> dict[str, Any]:
        """What a model folder records about its text: how it was read and what was held out, but not where it is."""
        split = self.reading.split if self.text else "line"  # documents of the default text are lines
        reading = {"split": split, "field": self.reading.field}
        return {"default_corpus": not self.text, "hold_out": self.hold_out, **reading, "dev": digest(dev)}

    def seen_from(self, folder: Path) -> TextSelection:
        """The same, with names as seen from a folder, so that it can be moved together with its text."""
        return self._named(lambda name: relative(name, folder))

    def resolved_from(self, folder: Path) -> TextSelection:
        """The inverse of `seen_from`."""
        return self._named(lambda name: os.path.normpath(folder.resolve() / name))

    def _named(self, name: Callable[[str], str]) -> TextSelection:
        text, dev = (tuple(n if n in (STDIN, "") else name(n) for n in names) for names in (self.text, self.dev))
        return replace(self, text=text, dev=dev)

    def instead(self, text: Sequence[str], dev: Sequence[str]) -> TextSelection:
        """The same text in another place."""
        moved = replace(self, text=tuple(text) or self.text, dev=tuple(dev) or self.dev)
        if STDIN in (*moved.text, *moved.dev) and STDIN not in (*text, *dev):
            raise SaffuError("this run read standard input; pass the same text again, in front of `resume`")
        return moved


def relative(name: str, folder: Path) -> str:
    """A name as seen from a folder; on Windows, one on another drive is absolute."""
    try:
        return Path(os.path.relpath(name, folder.resolve())).as_posix()
    except ValueError:
        return str(Path(name).absolute())


class TrainingText:
    """Training and held-out text, opened: read as often as needed, closed at the end."""

    def __init__(self, selection: TextSelection):
        self.selection = selection
        self.text = Text(selection.text, selection.reading)
        self.dev_text = Text(selection.dev, selection.reading) if selection.dev else None
        if self.text.sources is not None and self.dev_text is not None and self.dev_text.sources is not None:
            both = {s.path.resolve() for s in self.text.sources} & {s.path.resolve() for s in self.dev_text.sources}
            if both:
                raise SaffuError(f"{min(both).name} is both training and held-out text; remove it from one of them")
            of_size: defaultdict[int, list[Source]] = defaultdict(list)
            for source in self.text.sources:
                of_size[source.path.stat().st_size].append(source)
            for held_out in self.dev_text.sources:
                size = held_out.path.stat().st_size
                copies = (s for s in of_size[size] if size and filecmp.cmp(held_out.path, s.path, shallow=False))
                if copied := next(copies, None):
                    raise SaffuError(f"{held_out.name} is a copy of {copied.name}, which is training text; remove one")

    def __enter__(self) -> TrainingText:
        return self

    def __exit__(self, *error: object) -> None:
        self.text.__exit__(*error)
        if self.dev_text is not None:
            self.dev_text.__exit__(*error)

    def leave_out_bad_files(self) -> None:
        for text in (self.text, self.dev_text):
            if text is not None:
                text.leave_out_bad_files()

    def training_lines(self) -> Iterable[Line]:
        return self.text if self.dev_text is not None else hold_out(self.text, self.selection.hold_out, held_out=False)

    def held_out_lines(self, flags: bytearray | None = None) -> Iterable[Line]:
        """The lines that are held out; `flags` receives those of every line of a text that is divided."""
        if self.dev_text is not None:
            return self.dev_text
        return hold_out(self.text, self.selection.hold_out, held_out=True, flags=flags)

    def learned(self, tokenizer: Tokenizer | TokenizerConfig) -> Tokenizer:
        """The tokenizer, learned from the training text if it is given as settings."""
        if isinstance(tokenizer, Tokenizer):
            return tokenizer
        return Tokenizer.train((line for _, line in self.training_lines()), tokenizer, "learn the tokenizer")

    def tokenized(self, tokenizer: Tokenizer) -> tuple[TokenCorpus, TokenCorpus]:
        """Both as token ids in temporary files; the held-out corpus may be empty."""
        folder = Path(tempfile.gettempdir())
        corpus = TokenCorpus.build(self.training_lines(), tokenizer, folder, self.selection.max_tokens, "tokenize")
        flags = bytearray()
        dev = TokenCorpus.build(self.held_out_lines(flags), tokenizer, folder, None, "tokenize held-out text")
        return self.checked(corpus.divided(dev, flags), dev)

    def checked(self, corpus: TokenCorpus, dev: TokenCorpus) -> tuple[TokenCorpus, TokenCorpus]:
        """Training and held-out text, if there is enough of both; warns of what was left out."""
        selection = self.selection
        self.text.warn_of_skipped()
        if self.dev_text is not None:
            self.dev_text.warn_of_skipped()
        if not corpus.targets:
            raise SaffuError("the training text is empty; pass files with at least one non-empty line")
        if selection.dev and not dev.targets:
            raise SaffuError("the text of `dev` is empty; pass files with at least one non-empty line")
        if selection.hold_out and not dev.targets:
            warn(
                f"the text has only {plural(corpus.lines, 'line')}, too few to hold out every {selection.hold_out}th "
                "part; all of it is counted, and nothing is scored"
            )
        if selection.dev and same_text(corpus, dev, part=selection.max_tokens is not None):
            raise SaffuError("the text of `dev` is the training text; pass other text")
        return corpus, dev


def same_text(corpus: TokenCorpus, dev: TokenCorpus, part: bool) -> bool:
    """Whether two corpora have the same tokens or, if the first is only a `part` of its text, begin with the same."""
    size = min(corpus.targets, dev.targets)
    return (part or corpus.targets == dev.targets) and bool(np.array_equal(corpus.ids[:size], dev.ids[:size]))


def digest(corpus: TokenCorpus) -> str | None:
    """A digest of the lengths of all lines: equal for equal texts, whatever the vocabulary; None for no text."""
    return hashlib.sha256(corpus.sizes.astype("<i8").tobytes()).hexdigest()[:16] if corpus.targets else None
