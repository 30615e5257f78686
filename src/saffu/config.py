"""Settings: one dataclass from which the command line's options and `config.json` are made."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from saffu.errors import SaffuError


def setting(default: Any, meaning: str, *, zero: bool = False) -> Any:
    """A setting with its one line of meaning; a number that is no integer may be 0 only where `zero` says so."""
    return field(default=default, metadata={"meaning": meaning, "zero": zero})


def check_kinds(settings: Any) -> None:
    """Refuse values of the wrong type, outside the choices, or below zero."""
    kinds = get_type_hints(type(settings))
    for setting in fields(settings):
        name, kind, value = setting.name, kinds[setting.name], getattr(settings, setting.name)
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                choices = " or ".join(str(choice) for choice in get_args(kind))
                raise SaffuError(f"`{name}` is {value!r}; it must be {choices}")
        elif kind is float:
            zero = setting.metadata["zero"]
            if not (isinstance(value, int | float) and 0 <= value < float("inf") and (zero or value)):
                raise SaffuError(f"`{name}` is {value!r}; it must be a number {'of 0 or more' if zero else 'above 0'}")
        elif type(value) is not kind:
            raise SaffuError(f"`{name}` is {value!r}; it must be of type {kind.__name__}")
        elif kind is int and value < 0:
            raise SaffuError(f"`{name}` is {value}; it must not be negative")


@dataclass(frozen=True)
class SaffuConfig:
    """How a model is shaped and solved. The defaults are the paper's, as its "best" model has them."""

    solution: Literal["paper", "calibrated"] = setting(
        "paper",
        "the paper's closed form, or a calibrated product of counted views (of the rest it takes radius,"
        " memory, classes and what shapes the tokenizer)",
    )
    memory: int = setting(5, "tokens that a calibrated model's memory counts together, the target included; 0 for none")
    classes: int = setting(300, "classes of tokens in its memory's finest coarser copy (also a third, a tenth); 0 none")
    block: int = setting(128, "tokens in a block, its marker included (b); 0 for no block unit")
    radius: int = setting(8, "tokens before the target that the radial unit sees (r); 0 for no radial unit")
    block_mode: Literal["sum", "cat"] = setting("sum", "how the block unit joins its slots")
    radius_mode: Literal["sum", "cat"] = setting("cat", "how the radial unit joins its slots")
    block_dimension: int = setting(128, "embedding dimension of the block unit (D_b)")
    radius_dimension: int = setting(32, "embedding dimension of the radial unit (D_r)")
    hidden_dimension: int = setting(
        512, "bits the units predict (D_H); 0: straight to the vocabulary, with no final decoder"
    )
    documents: int = setting(0, "shards told apart by the document model (Δ); 0 for none")
    calibrate: bool = setting(
        False, "weigh slots, units and prior by exponents measured on held-out documents; attention gets a bias"
    )
    held_out: Literal["documents", "leave-one-out"] = setting(
        "documents",
        "what calibrate measures on: every 20th document, not counted until then, or counted targets, each without"
        " its own count (bits, straight to the vocabulary)",
    )
    embedding: Literal["bits", "counted"] = setting(
        "bits", "of tokens: the bit-cipher's, or counted from what follows them (radial unit with calibrate alone)"
    )
    head: Literal["previous", "first"] = setting("previous", "slot that queries attention: before the target, or first")
    attention: Literal["explicit", "uniform"] = setting("explicit", "start of attention: solved from V̂, or uniform")
    tune: int = setting(0, "folds over which attention is solved again from V; the first fold then initialises")
    accumulate: bool = setting(True, "tuning goes on adding to the decoders' counts instead of counting anew")
    restart_attention: bool = setting(True, "the first tuning forgets the counts of V̂")
    variation_sign: Literal[1, -1] = setting(1, "sign of V in the attention's counts (the paper prints +1)")
    attention_priming: Literal["paper", "slots", "measured"] = setting("paper", "K_W: log K, K, or the mean norm of Q")
    decoder_priming: Literal["paper", "measured"] = setting("paper", "K_U: K log K, or the mean norm of H")
    counting: Literal["float32", "float64"] = setting("float32", "precision of what is counted; sums are float64")
    smoothing: float = setting(1e-3, "added to the co-occurrences of the vocabulary, which can be zero")
    store: Literal["float32", "float16"] = setting(
        "float32", "how the weights are written: float16 takes half the room"
    )
    words: int = setting(2**17, "most frequent words the tokenizer's merges are counted on")
    kept_words: int = setting(2**12, "most frequent words whose merges are kept; 0 keeps all")
    count_by: Literal["types", "tokens"] = setting("types", "merges count each word once, or as often as it occurs")
    fold: int = setting(1_000_000, "targets in a fold: of tuning, and between two scores of backpropagation")
    seed: int = setting(0, "seed of the samples shown, of cold starts and of the order of training")

    def __post_init__(self) -> None:
        check_kinds(self)
        for setting in fields(self):
            foreign = setting.name in CALIBRATED if self.solution == "paper" else setting.name in PAPER
            if foreign and getattr(self, setting.name) != setting.default:
                other = "calibrated" if self.solution == "paper" else "paper"
                raise SaffuError(f"`{setting.name}` is a setting of the {other} solution; use the preset {other}")
        if self.solution == "calibrated" and not (self.radius or self.memory):
            raise SaffuError("`radius` and `memory` are both 0; a model needs something to see: give one of them")
        for name in ("memory", "classes"):
            if getattr(self, name) == 1:
                raise SaffuError(f"`{name}` is 1, which tells nothing; use 2 or more, or 0 for none")
        if self.solution == "calibrated" and max(self.radius, self.memory) > 64:
            raise SaffuError(
                "`radius` and `memory` may be 64 at most in a calibrated model; beyond 8 tokens little is gained"
            )
        if self.seed >= 2**63:
            raise SaffuError(f"`seed` is {self.seed}; it must be below 2**63")
        for name in ("block", "radius") if self.solution == "paper" else ():
            if getattr(self, name) == 1:
                raise SaffuError(f"`{name}` is 1, but attention needs at least 2 slots; use 2 or more, or 0 for none")
        if not (self.block or self.radius):
            raise SaffuError("`block` and `radius` are both 0; a model needs at least one unit: give one of them")
        for name in ("block_dimension", "radius_dimension", "fold"):
            if getattr(self, name) < 2:
                raise SaffuError(f"`{name}` is {getattr(self, name)}; it must be at least 2")
        self._check_calibrate()
        if self.documents == 1:
            raise SaffuError("`documents` is 1; a document model tells at least 2 shards apart (0 for none)")

        if self.documents and not self.hidden_dimension:
            raise SaffuError("the document model speaks to the final decoder; give a `hidden_dimension` above 0")

    def _check_calibrate(self) -> None:
        if self.calibrate and self.tune:
            raise SaffuError(
                "`calibrate`, which the preset network has, sets attention by measurement, `tune` by V;"
                " leave one of them out"
            )
        if self.held_out == "leave-one-out" and (
            not self.calibrate or self.hidden_dimension or self.embedding == "counted"
        ):
            raise SaffuError(
                "leave-one-out needs `calibrate`, `hidden_dimension` 0 and `embedding` bits:"
                " elsewhere a target's own count is in more than its own column"
            )
        if self.embedding == "counted" and not self.calibrate:
            raise SaffuError(
                "counted embeddings are made for measured exponents; add `calibrate`, or use `embedding` bits"
            )
        if self.embedding == "counted" and (self.block or self.hidden_dimension or self.radius_mode == "sum"):
            raise SaffuError(
                "counted embeddings need a radial unit alone, cat, that decodes straight to the vocabulary; use"
                " `block` 0, `hidden_dimension` 0 and `radius_mode` cat, or `embedding` bits"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def preset(cls, name: str, **settings: Any) -> "SaffuConfig":
        """The settings of a preset, some of them changed."""
        own = PRESETS[name].get("solution", "paper")
        asked = settings.get("solution", own)
        if asked != own and asked in PRESETS:
            raise SaffuError(
                f"the preset {name} has the {own} solution; leave out `solution`, or use the preset {asked}"
            )
        return cls(**{**PRESETS[name], **settings})

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "SaffuConfig":
        unknown = sorted(set(settings) - {f.name for f in fields(cls)})
        if unknown:
            raise SaffuError(
                f"unknown setting {unknown[0]!r}; this saffu knows {', '.join(f.name for f in fields(cls))}"
            )
        return cls(**settings)


CALIBRATED = {"memory", "classes"}  # settings of that solution alone
PAPER = {"block", "block_mode", "radius_mode", "block_dimension", "radius_dimension", "hidden_dimension", "documents"}
PAPER |= {
    "calibrate",
    "held_out",
    "embedding",
    "head",
    "attention",
    "tune",
    "accumulate",
    "restart_attention",
    "variation_sign",
}
PAPER |= {"attention_priming", "decoder_priming", "counting", "smoothing", "store"}

PRESETS: dict[str, dict[str, Any]] = {
    "calibrated": {"solution": "calibrated", "count_by": "tokens"},
    "paper": {},  # the paper's "best" model: sum blocks of 128, cat radius of 8
    "network": {  # one radial unit with counted embeddings and measured exponents, which backpropagation can go on from
        "block": 0,
        "radius": 4,
        "radius_dimension": 256,
        "hidden_dimension": 0,
        "calibrate": True,
        "embedding": "counted",
        "count_by": "tokens",
        "kept_words": 2048,
    },
}


@dataclass(frozen=True)
class TrainingConfig:
    """How backpropagation goes on from a start. The defaults are what measured best (docs/warm-start.md)."""

    start: Literal["warm", "uniform", "cold"] = setting(
        "warm", "from the explicit solution, from one with uniform attention, or from random weights"
    )
    rate: float = setting(1e-2, "learning rate of Adam")
    batch: int = setting(1024, "targets in a step")
    schedule: Literal["constant", "cosine"] = setting("constant", "the rate stays, or falls to 0 at the last fold")
    warmup: int = setting(0, "steps in which the rate rises to its value")
    weight_decay: float = setting(0.0, "share of each weight lost in a step, times the rate", zero=True)
    dropout: float = setting(0.1, "share of the units' inputs left out of each step", zero=True)
    clip: float = setting(1.0, "longest gradient, as a 2-norm; 0 for any", zero=True)
    free_embeddings: bool = setting(False, "train the embeddings too, their rows kept non-negative with unit sum")
    fit_share: float = setting(1.0, "share of the documents the explicit solution counts; under 1, Adam sees the rest")
    leave_out: bool = setting(False, "take each target's own count out of the final decoder while training on it")
    max_folds: int = setting(0, "stop after so many folds; 0: when the text held out says so")
    rises: int = setting(8, "stop when the perplexity of held-out text has risen so many times in all")
    save_every: float = setting(60.0, "seconds of work between two checkpoints")
    cold_scale: float = setting(1.0, "spread of a cold start's weights, times one over the root of a layer's inputs")
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of the product with the final decoder; auto: bfloat16 on a GPU"
    )
    capture: bool = setting(True, "on a GPU, launch each step as one CUDA graph")

    def __post_init__(self) -> None:
        check_kinds(self)
        for name in ("batch", "rises"):
            if getattr(self, name) < 1:
                raise SaffuError(f"`{name}` is {getattr(self, name)}; it must be at least 1")
        if self.dropout >= 1:
            raise SaffuError(f"`dropout` is {self.dropout}; it must be under 1")
        if self.fit_share > 1:
            raise SaffuError(f"`fit_share` is {self.fit_share}; it must be at most 1")
        if self.schedule == "cosine" and not self.max_folds:
            raise SaffuError("a cosine schedule falls to the last fold; say which one that is with `max_folds`")
        if self.start == "cold" and (self.leave_out or self.fit_share < 1):
            raise SaffuError("a cold start counts nothing; leave out `fit_share` and `leave_out`")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> "TrainingConfig":
        unknown = sorted(set(settings) - {f.name for f in fields(cls)})
        if unknown:
            raise SaffuError(f"unknown training setting {unknown[0]!r}; it is of another version of saffu")
        return cls(**settings)


TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"rate": 5e-6, "dropout": 0.0, "clip": 0.0},
    "network": {"dropout": 0.0},  # counted embeddings are dense: each dimension left out would change all logits
}
