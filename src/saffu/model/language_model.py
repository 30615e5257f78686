"""SaffuLM: a language model with a scikit-learn-style interface (settings in the constructor, text in `fit`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import NotFittedError, SaffuError
from saffu.files import Content
from saffu.interface import Array, Explanation, Model, Stage
from saffu.model import folder as folders
from saffu.model import living
from saffu.model.ledger import Ledger
from saffu.model.solutions import PRESETS, recount, solution, trained_tokenizer
from saffu.model.statistics import Statistics, sums_ngrams, trained_on
from saffu.processes import SINGLE, ProcessGroup
from saffu.settings import Settings
from saffu.text.corpus import Line, TokenCorpus
from saffu.text.documents import documents_from
from saffu.text.tokenizer import Tokenizer, TokenizerConfig
from saffu.tools import evaluate, generate
from saffu.tools.word_vectors import WordVectors

if TYPE_CHECKING:
    from saffu.calibrated.ngrams import NgramCounts
    from saffu.training.config import TrainingConfig

Text = TokenCorpus | Iterable[str | Mapping[str, Any] | Line]
OnRow = Callable[[dict[str, Any]], None]


class SaffuLM:
    """A language model fitted by counting. Uses the calibrated preset if no `config` is given.

    >>> lm = SaffuLM().fit(["the cat sat on the mat", "the dog sat on the log"] * 10)
    >>> lm.generate("the cat", temperature=0)
    ' sat on the mat'

    Attributes available after `fit`:
        model_: the fitted model (see `saffu.interface.Model`)
        tokenizer_: turns text into token ids and back
        references_: n-gram counts of the training text, for the baselines; None if they were not requested
        trained_on_: number of documents, lines, tokens, and bytes
        ledger_: which documents are counted; None if they cannot change any more
        log_: one row per stage
        source_: where the text came from, for whoever reads the model again; yours to set
    """

    model_: Model
    tokenizer_: Tokenizer
    tokenizer_settings_: dict[str, Any]
    statistics_: Statistics
    trained_on_: dict[str, int]
    ledger_: Ledger | None
    log_: list[dict[str, Any]]
    source_: dict[str, Any]
    _parameters: dict[str, Any]

    def __init__(
        self,
        config: Settings | None = None,
        *,
        tokenizer: Tokenizer | TokenizerConfig | None = None,
        encoder: SaffuLM | None = None,
        device: str = "cpu",
    ) -> None:
        """A fitted `tokenizer` is used unchanged; otherwise `fit` trains one, with the preset's settings by default.

        With an `encoder`, a fitted model, `fit` reuses its settings, tokenizer, and encoder and counts only the
        decoder; such models can be merged.
        """
        if encoder is not None and (config is not None or tokenizer is not None):
            raise SaffuError("`encoder` already determines the config and tokenizer; don't pass them too")
        self._tokenizer, self._encoder = encoder.tokenizer_ if encoder else tokenizer, encoder
        self._parameters = {"config": config, "tokenizer": tokenizer, "encoder": encoder, "device": device}
        self.config: Settings = encoder.config if encoder else config or PRESETS["calibrated"].config()
        self.device = device
        self.folder: folders.ModelFolder | None = None  # where parts that were not used yet are read from

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn expects them."""
        return dict(self._parameters)

    def set_params(self, **parameters: Any) -> SaffuLM:
        """Change arguments of the constructor, and discard what was learned."""
        given = {**self._parameters, **parameters}
        vars(self).clear()
        SaffuLM.__init__(self, **given)
        return self

    def __sklearn_clone__(self) -> SaffuLM:
        """An unfitted copy; an `encoder` stays fitted."""
        return type(self)(**self._parameters)

    if not TYPE_CHECKING:  # a type checker knows the attributes from their declarations

        def __getattr__(self, name: str) -> Any:
            """Read a learned attribute from the model's folder when it is first used."""
            if name in ("statistics_", "ledger_") and self.__dict__.get("folder") is not None:
                self.__dict__[name] = self.folder.learned(name)
                return self.__dict__[name]
            if name.endswith("_") and not name.startswith("_") and "model_" not in self.__dict__:
                raise NotFittedError(f"this SaffuLM is not fitted, so it has no {name}; call `fit` or use `saffu.load`")
            raise AttributeError(f"'SaffuLM' object has no attribute {name!r}")

    def __repr__(self) -> str:
        usual = type(self.config)().to_dict()
        changed = [f"{name}={value!r}" for name, value in self.config.to_dict().items() if value != usual[name]]
        settings = ", ".join([self.config.preset, *changed])
        if "model_" not in self.__dict__:
            return f"<SaffuLM {settings}; not fitted>"
        return f"<SaffuLM {settings}; {self.trained_on_['tokens']:,} tokens, vocabulary {len(self.tokenizer_):,}>"

    def fit(
        self,
        documents: Text,
        dev: Text | None = None,
        *,
        references: bool = True,
        training: TrainingConfig | None = None,
        embeddings: Array | None = None,
        group: ProcessGroup = SINGLE,
        on_stage: OnRow | None = None,
    ) -> SaffuLM:
        """Fit the model to `documents`, skipping blank ones, and return self.

        All of `dev` is scored after each stage. `references` counts n-grams for `reference_scores`. `training` says how
        the weights that `backprop` will train begin. `embeddings` (N, D), word vectors by token id, replace the
        bit-cipher of the paper. `on_stage` is called with each row of `log_`. With several processes (`group`), all
        must pass the same documents; only the first scores `dev`.
        """
        began = time.perf_counter()
        self.set_params()
        text = documents if isinstance(documents, TokenCorpus) else documents_from(documents)  # read twice
        self.tokenizer_, self.tokenizer_settings_ = trained_tokenizer(self._tokenizer, text, self.config)
        corpus, scored = self.tokenize(text, "tokenize"), None if dev is None else self.tokenize(dev, "tokenize")
        evaluate.require_text(corpus, "fit")
        self.trained_on_, self.source_, self.log_ = trained_on(corpus), {}, []
        for stage in self._stages(corpus, group, training=training, embeddings=embeddings):
            self.model_ = stage.model
            if not self.log_:
                ngrams = references and sums_ngrams(stage.model) is None
                self.statistics_ = Statistics.of(corpus, len(self.tokenizer_), ngrams)
                self.ledger_ = Ledger.of(corpus)
            if training is not None or stage.model.sums is None:  # then its counts are not those of whole documents
                self.ledger_ = None
            seconds = round(time.perf_counter() - began, 3)
            row = {"stage": stage.name, "tokens": corpus.targets, **stage.facts}
            if scored is not None and group.is_first:
                row |= evaluate.dev_facts(evaluate.evaluate(stage.model, scored))
            self.log_.append(row | {"seconds": seconds, "sample": self.sample()})
            if on_stage and group.is_first:
                on_stage(self.log_[-1])
        return self

    def _stages(self, corpus: TokenCorpus, group: ProcessGroup, **options: Any) -> Iterator[Stage]:
        if self._encoder is not None:
            return recount(self._encoder.model_, corpus, **options)
        fit = solution(self.config.preset).fit
        return fit(corpus, len(self.tokenizer_), self.config, self.device, group, **options)

    def backprop(
        self,
        documents: Text,
        dev: Text,
        training: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        source: Any = None,
        on_fold: OnRow | None = None,
        group: ProcessGroup = SINGLE,
    ) -> SaffuLM:
        """Train the fitted weights with Adam, stopping early on `dev`; keep the best weights and return self.

        With a `folder`, the model and the state of the run are saved there regularly, and `source`, anything JSON can
        hold, is kept for whoever resumes it. `on_fold` is called with each new row of `log_`.
        """
        from saffu.model.backprop import backprop

        backprop(self, documents, dev, training, folder, source, on_fold, group)
        return self

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        documents: Text,
        dev: Text,
        *,
        training: TrainingConfig | None = None,
        device: str | None = None,
        on_fold: OnRow | None = None,
        group: ProcessGroup = SINGLE,
    ) -> SaffuLM:
        """Resume a `backprop` run on the same text, with its own settings unless `training` replaces them."""
        from saffu.model.backprop import resume

        return resume(cls, folder, documents, dev, training, device, on_fold, group)

    def update(self, documents: Text) -> SaffuLM:
        """Count these documents too; the encoder is left unchanged. Returns self."""
        living.update(self, documents)
        return self

    def forget(self, documents: Text, skip_uncounted: bool = False) -> int:
        """Remove these documents. Raises SaffuError if any of them was never counted.

        If `skip_uncounted`, such documents are skipped. Returns the number of documents removed.
        """
        return living.forget(self, documents, skip_uncounted)

    def merge(self, *others: SaffuLM) -> SaffuLM:
        """Return a model that counts the documents of this one and of others with the same encoder."""
        return living.merge([self, *others])

    def tokenize(self, documents: Text, progress: str | None = None) -> TokenCorpus:
        """Tokenize documents in memory (see `TokenCorpus.build` for text that does not fit). Blank ones are skipped."""
        if isinstance(documents, TokenCorpus):
            return documents
        return TokenCorpus.build(documents_from(documents), self.tokenizer_, progress=progress)

    def score(self, documents: Text) -> evaluate.Score:
        """Score documents: negative log-likelihood (`nll`), targets, bytes, perplexity, bits per byte."""
        return evaluate.evaluate(self.model_, self.tokenize(documents))

    def line_scores(self, documents: Text) -> list[evaluate.Score]:
        """Score every line, given the lines of its document before it."""
        return evaluate.line_scores(self.model_, self.tokenize(documents))

    def perplexity(self, documents: Text) -> float:
        """Per-token perplexity. To compare models with different vocabularies, use `score(...).bits_per_byte`."""
        return self.score(documents).perplexity

    def reference_scores(self, documents: Text) -> dict[str, evaluate.Score]:
        """Scores of a unigram model and of Kneser–Ney n-gram models of the training text."""
        if self.references_ is None:
            raise SaffuError("this model stores no n-gram baselines; fit it with references=True")
        return evaluate.evaluate_references(self.references_, self.tokenize(documents))

    def generate(self, prompt: str = "", *, lines: int = 1, **sampling: Any) -> str:
        """Generate a continuation of the prompt, up to the end of its line. For the settings, see `saffu.Sampling`."""
        return self.generate_batch([prompt], lines=lines, **sampling)[0]

    def generate_batch(self, prompts: Sequence[str], *, lines: int = 1, **sampling: Any) -> list[str]:
        """Generate a continuation of each prompt, as one batch."""
        return generate.complete(self.model_, self.tokenizer_, prompts, generate.Sampling.from_dict(sampling), lines)

    def stream(self, prompt: str = "", *, lines: int = 1, **sampling: Any) -> Iterator[str]:
        """Like `generate`, in pieces as they are sampled."""
        return generate.stream_text(self.model_, self.tokenizer_, prompt, generate.Sampling.from_dict(sampling), lines)

    def sample(self, seed: int | None = None) -> str:
        """Generate a few short documents, markers included, in the style of the paper's logs."""
        usual = self.config.to_dict().get("seed", 0)
        return generate.short_documents(self.model_, self.tokenizer_, usual if seed is None else seed)

    def explain(self, prompt: str = "") -> Explanation:
        """Split the prediction of the token after the prompt into what each part of the context adds."""
        return self.model_.explain(generate.encode_prompt(self.tokenizer_, prompt))

    @property
    def word_vectors_(self) -> WordVectors:
        """Token and word vectors, and their nearest neighbors."""
        return WordVectors(self.tokenizer_, self.frequencies_, self.model_.vectors())

    @property
    def parameters_(self) -> int:
        """How many stored numbers shape a prediction: weights and embeddings, or counts and exponents."""
        return self.model_.size

    @property
    def frequencies_(self) -> Array:
        """How often each token was counted, (N,)."""
        return self.statistics_.frequencies

    @property
    def references_(self) -> NgramCounts | None:
        """N-gram counts of the training text: those in the model's own sums, if it has any."""
        own = sums_ngrams(self.model_)
        return self.statistics_.ngrams if own is None else own

    def save(self, folder: str | Path, extra_files: Mapping[str, Content] | None = None) -> None:
        """Write the model folder, with `extra_files` in it. Atomic: a reader finds the old model or the new one."""
        folders.write(self, Path(folder), extra_files or {})

    def export_hf(self, folder: str | Path) -> None:
        """Write a folder that transformers loads, and `saffu.load` too. Atomic."""
        from saffu.model.export import export_hf

        export_hf(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", check: bool = False) -> SaffuLM:
        """Load a model written by `save`. With `check`, verify the checksums of all files and read them into memory.

        Otherwise large files are memory-mapped, and verified before the model is changed or saved.
        """
        return folders.read(cls, Path(folder), device, check)
