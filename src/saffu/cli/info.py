"""saffu info: what a model is."""

import argparse
from dataclasses import fields
from pathlib import Path

from saffu.commands.common import Verb, model_facts, print_json
from saffu.config import CALIBRATED, PAPER, SaffuConfig
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb("info", run, "tell what a model is", "saffu info model")
    parser.add_argument("model", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from saffu.living import fingerprints
    from saffu.model import SaffuLM
    from saffu.product import Product

    lm = SaffuLM.load(options.model)
    encoder = fingerprints(lm)["encoder"]
    if options.json:
        print_json(model_facts(lm) | {"encoder": encoder, "can_change": lm.ledger_ is not None, "log": lm.log_})
        return
    seen = lm.trained_on_
    print(f"parameters   {lm.parameters_:,}")
    if isinstance(lm.network_, Product):
        for name, exponent in zip(lm.network_.names, lm.network_.exponents.tolist(), strict=True):
            print(f"  {name:<24} exponent {exponent:.3f}")
    else:
        for name, weight in lm.network_.state_dict().items():
            print(f"  {name:<18} {' × '.join(str(size) for size in weight.shape)}")
        for name, exponent in (lm.log_[0].get("exponents", {}) if lm.log_ else {}).items():
            print(f"  {name:<18} exponent {exponent:.3f}")
    print(f"vocabulary   {len(lm.tokenizer_):,}")
    documents = number_of(seen["documents"], "document")
    print(f"trained on   {seen['tokens']:,} tokens, {documents}, {seen['bytes']:,} bytes")
    print(f"encoder      {encoder[:16]}, {'can' if lm.ledger_ is not None else 'cannot'} update, forget and merge")
    for row in lm.log_:
        if "dev_perplexity" in row:
            perplexity, bits = row["dev_perplexity"], row["dev_bits_per_byte"]
            print(f"{row['stage']:<12} dev perplexity {perplexity:.2f}, {bits:.3f} bits/byte")
        elif "documents" in row:
            print(f"{row['stage']:<12} {number_of(row['documents'], 'document')}")
    print("settings     (* not the preset's)")
    preset = SaffuConfig.preset("network" if lm.config.calibrate else lm.config.solution).to_dict()
    foreign = PAPER if lm.config.solution == "calibrated" else CALIBRATED
    for setting in fields(SaffuConfig):
        if setting.name in foreign:
            continue
        value, meaning = getattr(lm.config, setting.name), setting.metadata["meaning"]
        print(f"{'*' if value != preset[setting.name] else ' '} {setting.name:<18} {value!s:<9} {meaning}")
