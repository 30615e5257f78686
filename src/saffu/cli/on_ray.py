"""The work behind `saffu train --ray` and `saffu score --ray`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.fitting import announce, finish, locked, read_encoder, stored_tokenizer
from saffu.cli.options import require_output
from saffu.cli.output import Log
from saffu.cli.reading import Reading, TextChoice, TrainingText, warn_of_bad_files
from saffu.cli.train import USUAL_SPLIT, trains
from saffu.errors import SaffuError
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.cluster.corpus import Tokenized
    from saffu.cluster.engine import Cluster
    from saffu.text.sources import Source
    from saffu.text.tokenizer import Tokenizer, TokenizerConfig
    from saffu.tools.score_table import Tally
    from saffu.tools.scores import Scorer


def fit(options: argparse.Namespace, config: Settings, tokenizer: TokenizerConfig, _: object) -> None:
    """Count the text on a cluster, and save the model in --out."""
    if options.preset != "calibrated" or options.resume or trains(options):
        raise SaffuError(
            "--ray counts only; the paper's preset and training a network use torchrun; remove --ray, or count first"
        )
    from saffu.calibrated.config import CalibratedConfig
    from saffu.cluster.engine import connected, require_usable
    from saffu.cluster.train import stages
    from saffu.cluster.work import described_sources, work_folder
    from saffu.model import fitting
    from saffu.model.language_model import SaffuLM
    from saffu.model.living import fingerprints
    from saffu.processes import SINGLE

    require_usable(options.ray)
    require_output(options)
    with locked(options.out, SINGLE):
        encoder = read_encoder(options, SINGLE) if options.encoder else None
        if encoder and encoder.config.preset != "calibrated":
            raise SaffuError(
                f"--ray counts only, but {options.encoder} has the preset {encoder.config.preset}; remove --ray"
            )
        choice = TextChoice.of(
            options, Reading.of(options, encoder.source_ if encoder else None, USUAL_SPLIT["calibrated"])
        )
        log, began = Log(options, False), time.perf_counter()
        with TrainingText(choice) as text:
            known = (
                stored_tokenizer(options.tokenizer) if options.tokenizer else encoder.tokenizer_ if encoder else None
            )
            job = choice.to_dict() | {"config": config.to_dict(), "tokenizer": tokenizer.to_dict()}
            job |= {"sources": described_sources(list(text.text.sources or [])), "known": known and known.to_json()}
            job["encoder"] = fingerprints(encoder) if encoder else None
            with work_folder(options.out, job) as folder, connected(options.ray, folder) as cluster:
                learned, found = tokenized(cluster, text, known or tokenizer)
                corpus, dev = text.checked(found.corpus, found.dev)
                announce(log, corpus, dev, len(learned), time.perf_counter() - began)
                lm = SaffuLM(encoder=encoder) if encoder else SaffuLM(config, tokenizer=learned)
                held: Any = getattr(encoder.model_, "encoder", None) if encoder else None

                def on_stage(row: dict[str, Any]) -> None:
                    lm.source_ = choice.summary(dev)
                    if not known:
                        lm.tokenizer_settings_ = tokenizer.to_dict()
                    lm.save(options.out)
                    log.row(row)

                assert isinstance(lm.config, CalibratedConfig)
                limit, settings = getattr(options, "memory_limit", None), lm.config
                fitting.fit(
                    lm, corpus, dev if dev.targets else None, True, None, None, SINGLE, on_stage,
                    lambda counted: stages(cluster, counted, len(learned), settings, limit, held),
                )  # fmt: skip
        finish(lm, options.out, options, log)


def tokenized(
    cluster: Cluster, text: TrainingText, tokenizer: Tokenizer | TokenizerConfig
) -> tuple[Tokenizer, Tokenized]:
    """The tokenizer, learned from the text if necessary, and the text as token ids."""
    from saffu.cluster import corpus
    from saffu.text.corpus import TokenCorpus
    from saffu.text.tokenizer import Tokenizer

    choice = text.choice
    how = choice.reading.arguments | ({} if text.text.sources else {"split": "file"})
    shards = corpus.shards_of(sources_of(text, cluster.folder), how, choice.hold_out)
    bad: dict[str, str] = {}
    if choice.hold_out or choice.reading.skip_bad_files:
        shards, bad = corpus.surveyed(cluster, shards, choice.reading.skip_bad_files)
        warn_of_bad_files(bad)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = corpus.learned_tokenizer(cluster, shards, tokenizer)
    found = corpus.tokenized(cluster, shards, tokenizer, choice.max_tokens)
    if text.dev_text is not None:
        text.dev_text.leave_out_bad_files()
        found.dev = TokenCorpus.build(text.dev_text, tokenizer, cluster.folder, None, "tokenize held-out text")
    text.text.skipped.update(found.skipped)
    return tokenizer, found


def sources_of(text: TrainingText, folder: Path) -> list[Source]:
    """The training text as files that all nodes can read."""
    from saffu.cluster.work import shared_sources
    from saffu.text.sources import Source

    if text.text.sources is not None:
        return shared_sources(list(text.text.sources), folder)
    path = folder / "default.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in text.text.default or []), "utf-8")
    return [Source(path, path.name)]


def score(options: argparse.Namespace) -> Tally:
    """Score each text file on a cluster, into a file of rows in --out; files that were scored before are skipped."""
    from saffu.cluster.engine import connected, require_usable
    from saffu.cluster.work import described_sources, is_begun, shared_sources, work_folder
    from saffu.files import read_manifest
    from saffu.text.sources import Sources
    from saffu.tools.score_table import Tally

    if not (options.ray and options.out):
        raise SaffuError("scoring on a cluster needs both --ray and --out DIR; pass both, or neither to print the rows")
    require_usable(options.ray)
    out: Path = options.out
    names = (
        "unit",
        "keep",
        "below",
        "above",
        "json",
        "field",
        "split",
        "no_cache",
        "keep_best",
        "quantiles",
        "encoding_errors",
        "bad_records",
    )
    asked = {name: getattr(options, name) for name in names}
    asked |= {"model": options.model.resolve(), "against": [path.resolve() for path in options.against]}
    models = [read_manifest(path)["checksums"] for path in (options.model, *options.against)]
    with Sources(options.text or ["-"]) as sources:
        job = {"asked": {name: str(value) for name, value in asked.items()}, "models": models}
        job["sources"] = described_sources(list(sources))
        if out.exists() and any(out.iterdir()) and not is_begun(out, job):
            raise SaffuError(f"{out} is not empty; choose another folder, or empty it")
        with work_folder(out, job, kept=True) as folder, connected(options.ray, folder) as cluster:
            out.mkdir(parents=True, exist_ok=True)
            ending = "jsonl" if options.json else "tsv"
            items = [
                (asked, (str(source.path), source.name, source.spooled), str(rows_path(out, number, source, ending)))
                for number, source in enumerate(shared_sources(list(sources), folder))
            ]
            found = cluster.map(
                "scores", score_file, [(*item, options.skip_bad_files) for item in items], "score", unit=" files"
            )
    warn_of_bad_files({item[1][1]: part["bad"] for item, part in zip(items, found, strict=True) if part["bad"]})
    return sum((Tally.from_dict(part["tally"]) for part in found), Tally())


def rows_path(out: Path, number: int, source: Source, ending: str) -> Path:
    """Where the rows of a file go; the names sort as the files do."""
    return out.resolve() / f"{number:05d}-{Path(source.name).name}.{ending}"


def score_file(asked: Mapping[str, Any], place: tuple[str, str, bool], path: str, skip_bad: bool) -> dict[str, Any]:
    """Score a file; a task. The file of rows appears when it is complete."""
    from saffu.cli.scoring import scorers_of, write_scores
    from saffu.cluster.engine import appearing
    from saffu.text.sources import Source
    from saffu.tools.score_table import Tally

    options = argparse.Namespace(**asked)
    scorer, *others = scorers_of(options, loaded_scorer)
    tally, bad = Tally(), ""
    try:
        with appearing(Path(path), "x") as file:
            tally = write_scores(options, [Source(Path(place[0]), *place[1:])], scorer, others, file)
    except SaffuError as error:
        bad = str(error)
        if not skip_bad:
            raise
    return {"tally": tally.to_dict(), "bad": bad}


@lru_cache(maxsize=8)
def loaded_scorer(path: Path) -> Scorer:
    """Loaded once in each worker; all workers of a node share the pages of a model."""
    from saffu import load

    return load(path).scorer_
