"""saffu info: what a model is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from saffu.cli.options import Command, Parser, add_model, load_model, shown
from saffu.cli.output import model_facts, print_json
from saffu.format import escape_controls, in_parts, plural, table

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM

MEANINGS = {"exponents": "(means, for classes and for tokens)"}


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("--check", action="store_true", help="verify the checksums of all files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from saffu.model.living import fingerprints

    lm = load_model(options, options.check)
    encoder = fingerprints(lm)["encoder"]
    sizes = {path.name: path.stat().st_size for path in sorted(options.model.iterdir()) if path.is_file()}
    facts = model_facts(lm) | {"source": lm.source_, "fingerprint": lm.fingerprint_, "encoder": encoder}
    facts |= {"changeable": lm.ledger_ is not None, "files": sizes, "fit": fit_facts(lm), "log": lm.log_}
    if options.json:
        print_json(facts | ({"checked": True} if options.check else {}))
        return
    seen = lm.trained_on_
    text = f"{seen['tokens']:,} tokens, {in_parts(seen['documents'], seen['parts'])}, {plural(seen['lines'], 'line')}"
    read = f", --split {lm.source_['split']}" if lm.source_.get("split") else ""
    forget = "forget (with --drop-network)" if lm.model_.has_network else "forget"
    changes = f"can update, {forget}, and merge" if facts["changeable"] else "cannot update, forget, or merge"
    rows = [
        ["preset", preset_of(lm)],
        ["parameters", f"{lm.parameters_:,}"],
        ["vocabulary", f"{len(lm.tokenizer_):,}"],
        ["trained on", f"{text}, {seen['bytes']:,} bytes{read}"],
        ["fingerprint", f"{facts['fingerprint'][:16]} of the tokenizer and counts" if facts["fingerprint"] else "none"],
        ["encoder", f"{encoder[:16]}; {changes}"],
        ["files", f"{sum(sizes.values()) / 1e6:.1f} MB" + ("; all checksums match" if options.check else "")],
    ]
    for name, value in rows:
        print(f"{name:<12} {value}")
    print_scores(lm)
    print_fit(facts["fit"])
    print_settings(lm)


def preset_of(lm: SaffuLM) -> str:
    """The preset as `saffu train` names it: a network next to counts is an option of the counted one."""
    from saffu.model.solutions import offered_as

    network = ", with a trained network" if lm.model_.has_network else ""
    return offered_as(lm.config.preset) + network + (" of int8 weights" if lm.model_.has_int8_weights else "")


def fit_facts(lm: SaffuLM) -> dict[str, Any]:
    """What the last stage of the fit reported in addition to its scores: exponents, warnings, …"""
    stages = [row for row in lm.log_ if "fold" not in row and "documents" not in row]
    others = ("stage", "tokens", "seconds", "sample")
    last = stages[-1] if stages else {}
    return {key: value for key, value in last.items() if key not in others and not key.startswith("dev_")}


def print_scores(lm: SaffuLM) -> None:
    for row in lm.log_:
        if "dev_perplexity" in row:
            perplexity = row["dev_perplexity"]
            bits = row["dev_bits_per_byte"]
            print(f"{escape_controls(row['stage']):<12} dev perplexity {perplexity:.2f}, {bits:.3f} bits/byte")
        elif "documents" in row:
            print(f"{escape_controls(row['stage']):<12} {in_parts(row['documents'], row.get('parts', 0))}")


def print_fit(facts: dict[str, Any]) -> None:
    """Exponents and the like as small tables; warnings, such as discounts that could not be estimated, as lines."""
    for name, value in facts.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            print(escape_controls(f"\n{title:<12} {MEANINGS.get(name, '')}").rstrip())
            rows = [
                [f"  {key}", *map(number, entry if isinstance(entry, list) else [entry])]
                for key, entry in value.items()
            ]
            width = max(map(len, rows), default=0)
            rows = [[*row, *[""] * (width - len(row))] for row in rows]
            print(escape_controls(table(rows[0], rows[1:])) if rows else "  none")
        elif isinstance(value, list):
            for line in value:
                print(escape_controls(f"{title.removesuffix('s'):<12} {line}"))
        else:
            print(escape_controls(f"{title:<12} {value}"))


def number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def print_settings(lm: SaffuLM) -> None:
    print("\nsettings     (* differs from the default, → follows from the text and the others)")
    for entry in fields(lm.config):
        value = getattr(lm.config, entry.name)
        mark = "→" if entry.metadata["derived"] else "*" if value != entry.default else " "
        name = entry.metadata["option"] or entry.name
        print(f"{mark} {name:<18} {shown(value):<10} {entry.metadata['meaning']}")


COMMAND = Command(
    "info",
    "show a model's size, settings, and training data",
    "MODEL [options]",
    "saffu info model\nsaffu info model --check",
    add_options,
    run,
)
