"""The work behind `saffu score --ray`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError
from saffu.text.selection import warn_of_bad_files
from saffu.text.sources import Source, Sources

if TYPE_CHECKING:
    from saffu.tools.score_table import Tally
    from saffu.tools.scores import Scorer


def score(options: argparse.Namespace) -> Tally:
    """Score each text file on a cluster, into a file of rows in --out; files that were scored before are skipped."""
    from saffu.cluster.engine import connected, described_sources, is_begun, require_usable, shared_sources, work_folder
    from saffu.files import read_manifest
    from saffu.tools.score_table import Tally

    if not options.out:
        raise SaffuError("--ray needs --out DIR, the folder that the rows are written to")
    if not options.ray:
        raise SaffuError("--out is for scoring on a cluster; add --ray, or redirect the rows to a file with > FILE")
    require_usable(options.ray)
    out: Path = options.out
    names = (
        "unit",
        "keep",
        "json",
        "field",
        "split",
        "memory",
        "online",
        "repetition",
        "keep_best",
        "encoding_errors",
        "bad_records",
    )
    settings = {name: getattr(options, name) for name in names}
    settings |= {"model": options.model.resolve(), "against": [path.resolve() for path in options.against]}
    models = [read_manifest(path)["checksums"] for path in (options.model, *options.against)]
    with Sources(options.text or ["-"]) as sources:
        job = {"settings": {name: str(value) for name, value in settings.items()}, "models": models}
        job["sources"] = described_sources(list(sources))
        if out.exists() and any(out.iterdir()) and not is_begun(out, job):
            raise SaffuError(f"{out} is not empty; choose another folder, or empty it")
        with work_folder(out, job, kept=True) as folder, connected(options.ray, folder) as cluster:
            out.mkdir(parents=True, exist_ok=True)
            ending = "jsonl" if options.json else "tsv"
            shared = shared_sources(list(sources), folder)
            paths = [  # whose names sort as the files do
                out.resolve() / f"{number:05d}-{Path(source.name).name}.{ending}"
                for number, source in enumerate(shared)
            ]
            items = [(settings, *each, options.skip_bad_files) for each in zip(shared, paths, strict=True)]
            results = cluster.map("scores", score_file, items, "score", unit=" files")
    warn_of_bad_files({s.name: part["bad"] for s, part in zip(shared, results, strict=True) if part["bad"]})
    return sum((Tally.from_dict(part["tally"]) for part in results), Tally())


def score_file(settings: Mapping[str, Any], source: Source, path: Path, skip_bad: bool) -> dict[str, Any]:
    """Score a file; a task. The file of rows appears when it is complete."""
    from saffu.cli.scoring import scorers_of, write_scores
    from saffu.cluster.engine import appearing
    from saffu.tools.score_table import Tally

    options = argparse.Namespace(**settings)
    scorer, *others = scorers_of(options, loaded_scorer)
    tally = Tally()
    bad = ""
    try:
        with appearing(path, "x") as file:
            tally = write_scores(options, [source], scorer, others, file)
    except SaffuError as error:
        bad = str(error)
        if not skip_bad:
            raise
    return {"tally": tally.to_dict(), "bad": bad}


@lru_cache(maxsize=8)
def loaded_scorer(path: Path) -> Scorer:
    """Loaded once in each worker; all workers of a node share the pages of a model."""
    from saffu.model.language_model import SaffuLM

    return SaffuLM.load(path).scorer_
