"""saffu bench: how fast this machine counts, stage by stage, beside the floor and beside Adam."""

import argparse
from typing import TYPE_CHECKING

from saffu.commands.common import (
    Documents,
    Verb,
    add_common_options,
    add_settings,
    add_text_options,
    count,
    given_settings,
    print_json,
)
from saffu.config import PRESETS, SaffuConfig
from saffu.errors import SaffuError
from saffu.wording import number_of

if TYPE_CHECKING:
    from saffu.bench import Bench


def add(verb: Verb) -> None:
    parser = verb(
        "bench",
        run,
        "measure counting, evaluation, generation and an epoch of Adam on the same text",
        "saffu bench books/*.txt.gz --tokens 1M\n  saffu bench books/*.txt.gz --preset calibrated --peer gpt2",
    )
    parser.add_argument("corpus", nargs="*", help="files, folders or globs; none: the English that ships with Python")
    parser.add_argument("--tokens", type=count, metavar="N", help="whole documents until so many tokens (1e6, 2M)")
    parser.add_argument("--preset", choices=PRESETS, default="paper", help="settings to start from (default: paper)")
    parser.add_argument(
        "--adam-seconds",
        type=float,
        default=20.0,
        metavar="X",
        help="time given to backpropagation; an epoch that is longer is reckoned from its share (default: 20; 0 none)",
    )
    parser.add_argument("--peer", choices=("gpt2",), help="train a GPT-2 of as many parameters for as long, beside it")
    add_text_options(parser)
    add_common_options(parser)
    add_settings(parser, SaffuConfig, "settings of the model (defaults are the preset's)")


def run(options: argparse.Namespace) -> None:
    from saffu import peer
    from saffu.bench import measure
    from saffu.devices import usable_device

    config = SaffuConfig.preset(options.preset, **given_settings(options, SaffuConfig))
    if not 0 <= options.adam_seconds < float("inf"):
        raise SaffuError(f"--adam-seconds is {options.adam_seconds}; it must be 0 or more")
    device = usable_device(options.device)
    if options.peer:
        peer.require()  # before anything long
    bench = measure(Documents(options.corpus, options), config, device, options.tokens, options.adam_seconds)
    if options.peer:
        bench.peers.append(peer.trained(bench))
    if options.json:
        print_json(bench.facts())
    else:
        print_bench(bench)


def print_bench(bench: "Bench") -> None:
    from saffu.network import Network

    machine, corpus = bench.machine, bench.corpus
    print(f"{machine.name}, {number_of(machine.threads, 'thread')}: ", end="")
    print(f"{machine.operations_per_second / 1e9:,.0f} Gflop/s, ", end="")
    print(f"{machine.bytes_per_second / 1e9:,.1f} GB/s copied, {machine.gathered_per_second / 1e9:,.1f} GB/s gathered")
    print(
        f"{corpus.targets:,} tokens in {corpus.documents:,} documents, vocabulary {len(bench.lm.tokenizer_):,}, ",
        end="",
    )
    print(f"{bench.lm.parameters_:,} parameters")
    print(f"\n{'':<22} {'seconds':>10} {'tokens/s':>12} {'floor s':>10} {'× floor':>8}")
    for stage in bench.stages.values():
        floor = machine.floor(stage.work) if stage.work else None
        floors = f"{floor:>10.3f} {stage.seconds / floor:>8.1f}" if floor else f"{'':>10} {'':>8}"
        print(
            f"{stage.name:<22} {stage.seconds:>10.3f} {stage.tokens_per_second:>12,.0f} {floors}  {stage.note}".rstrip()
        )
    facts = bench.facts()
    if "adam epoch" not in bench.stages and isinstance(bench.lm.network_, Network):
        print("\nno epoch of Adam: it was not asked for, or there is too little text to time one")
    if facts["adam_to_explicit_ratio"]:
        print(f"\nan epoch of Adam takes {facts['adam_to_explicit_ratio']:,.0f} times as long as the explicit solution")
    if bench.peak_memory:
        print(f"peak memory {bench.peak_memory / 2**30:.2f} GiB, before Adam")
    print(f"held-out text, {bench.dev.targets:,} tokens: {bench.bits_per_byte:.3f} bits per byte")
    for peer in bench.peers:
        print(f"{peer['name']}: {peer['dev_bits_per_byte']:.3f} bits per byte", end="")
        print(f" ({peer['parameters']:,} parameters, {peer['steps']:,} steps in {peer['seconds']:.1f} s)")
