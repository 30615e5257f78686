"""SaffuLM: a language model with a scikit-learn-style interface (settings in the constructor, text in `fit`)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import NotFittedError, SaffuError
from saffu.files import Content
from saffu.format import progress_bar
from saffu.interface import Array, Explanation, Model, Score, Stage, State
from saffu.model import folder as folders
from saffu.model import living
from saffu.model.backprop import finish, new_run, with_network
from saffu.model.ledger import Ledger
from saffu.model.solutions import (
    DEFAULT_PRESET,
    PRESETS,
    check,
    next_to_counts,
    recount,
    shown_name,
    solution,
    trained_tokenizer,
)
from saffu.settings import Settings
from saffu.text.corpus import Line, TokenCorpus
from saffu.text.documents import documents_from
from saffu.text.tokenizer import Tokenizer, TokenizerConfig
from saffu.tools import decoding, evaluate, generate
from saffu.tools.scores import LineScore, Scorer, batches, checked, score_texts
from saffu.tools.word_vectors import WordVectors
from saffu.tools.words import WordScore

if TYPE_CHECKING:
    from saffu.calibrated.ngrams import NgramCounts
    from saffu.paper.config import TrainingConfig

Text = TokenCorpus | Iterable[str | Mapping[str, Any] | Line]
OnRow = Callable[[dict[str, Any]], None]


class SaffuLM:
    """A language model fitted by counting. Uses the counted preset if no `config` is given.

    >>> lm = SaffuLM().fit(["the cat sat on the mat", "the dog sat on the log"] * 10)
    >>> lm.generate("the cat", temperature=0)
    ' sat on the mat'

    Attributes available after `fit`:
        model_: the fitted model (see `saffu.interface.Model`)
        tokenizer_: turns text into token ids and back
        references_: n-gram counts of the training text, for the baselines; None if they were not requested
        trained_on_: number of documents, parts of them, lines, tokens, and bytes
        ledger_: which documents are counted; None if they can no longer change
        log_: one row per stage
        source_: where the text came from; saved with the model, and yours to add to, with whatever JSON can hold
    """

    model_: Model
    tokenizer_: Tokenizer
    tokenizer_settings_: dict[str, Any]
    statistics_: folders.Statistics
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
        **settings: Any,
    ) -> None:
        """A fitted `tokenizer` is used unchanged; otherwise `fit` trains one, with the preset's settings by default.

        With an `encoder`, a fitted model, `fit` reuses its settings, tokenizer, and encoder and counts only the
        decoder; such models can be merged.
        """
        if settings:
            given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
            raise TypeError(f"settings belong to a config; pass SaffuLM(saffu.CalibratedConfig({given}))")
        check(config=(config, Settings), tokenizer=(tokenizer, Tokenizer, TokenizerConfig), encoder=(encoder, SaffuLM))
        if encoder is not None and (config is not None or tokenizer is not None):
            raise SaffuError("`encoder` already determines the config and tokenizer; don't pass them too")
        self.encoder = encoder
        self._tokenizer = encoder.tokenizer_ if encoder else tokenizer
        self._parameters = {"config": config, "tokenizer": tokenizer, "encoder": encoder, "device": device}
        self.config: Settings = encoder.config if encoder else config or PRESETS[DEFAULT_PRESET].config()
        self.device = device
        self.folder: folders.ModelFolder | None = None  # from which unused parts are read on first use

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn expects."""
        return dict(self._parameters)

    def __sklearn_clone__(self) -> SaffuLM:
        """An unfitted copy; an `encoder` stays fitted."""
        return type(self)(**self._parameters)

    def set_params(self, **parameters: Any) -> SaffuLM:
        """Change arguments of the constructor and discard everything learned."""
        fresh = type(self)(**self._parameters | parameters)  # fails, if it does, before anything is discarded
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        vars(self).update(vars(fresh))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn: this estimator takes strings, and no targets."""
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(one_d_array=True, two_d_array=False, string=True)
        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=inputs)

    def __copy__(self) -> SaffuLM:
        """An independent model that shares the arrays of this one, which never change."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """For `pickle`: a fitted model as the files of its folder, because it holds memory that cannot be pickled."""
        if not self.__sklearn_is_fitted__():
            return partial(type(self), **self.get_params()), ()
        with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
            self.save(Path(folder) / "model")
            contents = {path.name: path.read_bytes() for path in (Path(folder) / "model").iterdir()}
        parameters = {name: vars(self)[name] for name in ("encoder", "_tokenizer", "_parameters")}
        return _restored, (type(self), self.device, contents), parameters

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
        """The preset, the settings that differ from its defaults, and what the model was fitted to."""
        usual = type(self.config)().to_dict()
        changed = [f"{name}={value!r}" for name, value in self.config.to_dict().items() if value != usual[name]]
        settings = ", ".join([shown_name(self.config.preset), *changed])
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
        on_stage: OnRow | None = None,
        stages: Callable[[SaffuLM, TokenCorpus], Iterator[Stage]] | None = None,
    ) -> SaffuLM:
        """Fit the model to `documents`, skipping blank ones, and return self.

        All of `dev` is scored after each stage. `references` counts n-grams for `reference_scores`. `training` sets
        the initial weights of a later `backprop`. `embeddings` (N, D), word vectors by token id, replace the paper's
        bit-cipher. `on_stage` is called with each row of `log_`. `stages` counts and solves elsewhere, such as on a
        cluster.
        """
        began = time.perf_counter()
        self.set_params()
        text = documents if isinstance(documents, TokenCorpus) else documents_from(documents)  # read twice
        self.tokenizer_ = trained_tokenizer(self._tokenizer, text, self.config)
        settings = None if self.encoder else self.tokenizer_.settings
        self.tokenizer_settings_ = settings.to_dict() if settings else {}
        corpus = self.tokenize(text, "tokenize")
        scored = None if dev is None else self.tokenize(dev, "tokenize")
        corpus.require_text("fit")
        self.trained_on_ = corpus.totals()
        self.source_ = {}
        self.log_ = []
        if stages is None:
            solving = self._stages(corpus, training=training, embeddings=embeddings)
        else:
            solving = stages(self, corpus)
        for stage in solving:
            self.model_ = stage.model
            if not self.log_:
                ngrams = references and evaluate.references_of(stage.model) is None
                with progress_bar("list documents", unit=None):
                    self.statistics_ = folders.Statistics.of(corpus, len(self.tokenizer_), ngrams)
                    self.ledger_ = Ledger.of(corpus)
            if training is not None or stage.model.sums is None:  # then its counts are not those of whole documents
                self.ledger_ = None
            seconds = round(time.perf_counter() - began, 3)
            row = {"stage": stage.name, "tokens": corpus.targets, **stage.facts}
            if scored is not None:
                row |= evaluate.dev_facts(evaluate.evaluate(stage.model, scored))
            self.log_.append(row | {"seconds": seconds, "sample": self.sample()})
            if on_stage:
                on_stage(self.log_[-1])
        return self

    def _stages(self, corpus: TokenCorpus, **options: Any) -> Iterator[Stage]:
        if self.encoder is not None:
            return recount(self.encoder.model_, corpus, **options)
        fit = solution(self.config.preset).fit
        return fit(corpus, len(self.tokenizer_), self.config, self.device, **options)

    def train(
        self,
        documents: Text,
        dev: Text,
        *,
        minutes: float = 0.0,
        epochs: float = 0.0,
        folder: str | Path | None = None,
        on_row: OnRow | None = None,
    ) -> SaffuLM:
        """Count documents, unless the model is fitted, then train a network next to the counts, and return self.

        `minutes` are those of this call, counting included. `dev`, text that is not trained on, decides which weights
        are kept. With a `folder`, the model and the state of the run are saved there regularly. `on_row` is called with
        each new row of `log_`.
        """
        began = time.perf_counter()
        config = with_network(self.config, minutes=minutes, epochs=epochs)
        if self.__sklearn_is_fitted__():
            documents = living.counted_by(self, documents)
        else:
            self.set_params(config=config).fit(documents, dev)
        model = self.model_
        if config.preset != self.config.preset:
            model = next_to_counts(model, config, self.device)
        return self._train(model, config, documents, dev, began, folder=folder, on_fold=on_row)

    def backprop(
        self,
        documents: Text,
        dev: Text,
        training: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        source: Any = None,
        on_fold: OnRow | None = None,
        began: float | None = None,
    ) -> SaffuLM:
        """Train the weights by backpropagation, stopping early on `dev`; keep the best weights and return self.

        With a `folder`, the model and the state of the run are saved there regularly, and `source`, anything JSON can
        hold, is kept for resuming it. `on_fold` is called with each new row of `log_`. If the settings limit `minutes`,
        these include the latest stage of the model, unless they `began` at another `time.perf_counter()`.
        """
        if began is None:
            began = time.perf_counter() - (self.log_[-1].get("seconds", 0.0) if self.log_ else 0.0)
        folders.verify_and_load(self)
        return self._train(
            self.model_, self.config, documents, dev, began, training, folder=folder, source=source, on_fold=on_fold
        )

    def _train(
        self,
        model: Model,
        config: Settings,
        documents: Text,
        dev: Text,
        began: float,
        training: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        source: Any = None,
        on_fold: OnRow | None = None,
    ) -> SaffuLM:
        """Train a model; until its run begins, this one does not change."""
        corpora = self.tokenize(documents, "tokenize"), self.tokenize(dev, "tokenize")
        run = new_run(model, config, self.tokenizer_, training, *corpora, source=source, began=began)
        finish(self, run, folder, on_fold)
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
    ) -> SaffuLM:
        """Resume a `backprop` run on the same text, with its own settings unless `training` replaces them."""
        from saffu.training.checkpoint import read_checkpoint

        checkpoint = read_checkpoint(Path(folder))
        lm = cls.load(folder, device or checkpoint.device, check=True)
        corpora = lm.tokenize(documents, "tokenize"), lm.tokenize(dev, "tokenize")
        if checkpoint.text != {"corpus": corpora[0].fingerprint(), "dev": corpora[1].fingerprint()}:
            raise SaffuError("this run was trained on different text; pass the original text or start a new run")
        own: Any = solution(lm.config.preset).training
        if training is None and own is not None and checkpoint.settings is not None:
            training = own.from_dict(dict(checkpoint.settings))
        run = new_run(lm.model_, lm.config, lm.tokenizer_, training, *corpora, source=checkpoint.source)
        run.restore(checkpoint)
        folders.verify_and_load(lm)
        finish(lm, run, folder, on_fold)
        return lm

    def update(self, documents: Text) -> SaffuLM:
        """Count these documents too; the encoder is left unchanged. Returns self."""
        living.update(self, documents)
        return self

    def forget(self, documents: Text, skip_uncounted: bool = False, drop_network: bool = False) -> int:
        """Remove these documents. Raises SaffuError if any line of them was not counted, unless `skip_uncounted`.

        A network trained next to the counts cannot forget; `drop_network` removes it. Returns how many were removed.
        """
        return living.forget(self, documents, skip_uncounted, drop_network).documents

    def merge(self, *others: SaffuLM) -> SaffuLM:
        """Return a model that counts the documents of this one and of others with the same encoder."""
        return living.merge([self, *others])

    def quantize(self) -> SaffuLM:
        """Round the weights of the trained network to int8: a quarter of the size, and faster."""
        model = self.model_.with_int8_weights()
        if model is None:
            raise SaffuError("this model has no trained network, so there are no weights to round; train one first")
        self.model_ = model
        return self

    def tokenize(self, documents: Text, progress: str | None = None) -> TokenCorpus:
        """Tokenize documents in memory (see `TokenCorpus.build` for text that does not fit). Blank ones are skipped."""
        if isinstance(documents, TokenCorpus):
            return documents
        return TokenCorpus.build(documents_from(documents), self.tokenizer_, progress=progress)

    def score(self, documents: Text, y: None = None, *, online: bool = False) -> Score:
        """Score documents: negative log-likelihood (`nll`), targets, bytes, perplexity, bits per byte.

        With `online`, memory continues from one document to the next, and a network also predicts what followed similar
        states before. The model does not change.
        `y`, which scikit-learn's pipelines pass, is ignored.
        """
        model = self.model_.online() if online else self.model_
        return evaluate.evaluate(model, self.tokenize(documents))

    def score_lines(self, texts: Iterable[str], memory: bool = False) -> list[LineScore]:
        """Score each text on its own: bits, tokens, bytes, bits per byte, and perplexity, as rows for pandas.

        With `memory`, what a text repeats of itself is cheap: better for long texts, worse for filtering.
        """
        return list(score_texts(self._scorer(memory), texts))

    def surprisals(self, text: str, memory: bool = False) -> list[WordScore]:
        """Return the surprisal in bits of each word of a text and of each line end; they add up to the text's bits.

        With `memory`, words that the text has used before are less surprising.
        """
        return self.surprisals_batch([text], memory)[0]

    def surprisals_batch(self, texts: Iterable[str], memory: bool = False) -> list[list[WordScore]]:
        """Return the surprisals of the words of each text, each text on its own: see `surprisals`."""
        scorer = self._scorer(memory)
        return [words for batch in batches(checked(texts), len) for words in scorer.words(batch)]

    def _scorer(self, memory: bool) -> Scorer:
        follows = self.trained_on_["lines"] > 2 * self.trained_on_["parts"]
        return Scorer(self._model(memory), self.tokenizer_, follows)

    def _model(self, memory: bool) -> Model:
        return self.model_ if memory else self.model_.without_memory() or self.model_

    @property
    def scorer_(self) -> Scorer:
        """Scores batches of texts by line, word, or token, with memory of each."""
        return self._scorer(memory=True)

    def perplexity(self, documents: Text) -> float:
        """Return the perplexity per token. To compare vocabularies, use `score(...).bits_per_byte`."""
        return self.score(documents).perplexity

    def reference_scores(self, documents: Text) -> dict[str, Score]:
        """Score documents with the baselines: a unigram model and Kneser–Ney n-gram models of the training text."""
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

    def complete_word(self, prompt: str, number: int = 10) -> dict[str, float]:
        """Complete the last, unfinished word of a prompt: words with their probabilities, most likely first."""
        return decoding.complete_word(self.model_, self.tokenizer_, prompt, number)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; a newline is `<eod>`. The end of the text is not encoded."""
        return generate.encode_prompt(self.tokenizer_, text)

    def start(self, prompt: str = "", memory: bool = True) -> State:
        """Return the state of a document that begins with a prompt. States are hashable and immutable.

        Without `memory`, what the document has said counts only as context. A state is refused once the model changes.
        """
        return self._model(memory).start(self.encode(prompt))

    def step(self, state: State, token: int) -> tuple[float, State]:
        """Return ln p of a token after a state, and the state after that token."""
        after = self._owner(state).advance(state, token)  # first, because it refuses unknown tokens
        return float(self.next(state)[token]), after

    def next(self, state: State) -> Array:
        """Return ln p of every token after a state, (N,) float32."""
        row: Array = self._owner(state).next_log_probabilities([state])[0]
        return row

    def _owner(self, state: State) -> Model:
        """Return the model that is to read a state: without its memory if that made the state."""
        bare = self._model(memory=False)
        return bare if isinstance(state, State) and state.model is bare else self.model_

    def sample(self, seed: int | None = None) -> str:
        """Generate a few short documents, markers included, in the style of the paper's logs."""
        seed = getattr(self.config, "seed", 0) if seed is None else seed
        return generate.short_documents(self.model_, self.tokenizer_, seed)

    def explain(self, prompt: str = "") -> Explanation:
        """Split the prediction of the token after the prompt into what each part of the context adds."""
        return self.model_.explain(self.encode(prompt))

    @property
    def word_vectors_(self) -> WordVectors:
        """Token and word vectors, and their nearest neighbors."""
        return WordVectors(self.tokenizer_, self.frequencies_, self.model_.vectors())

    @property
    def parameters_(self) -> int:
        """The number of stored values that predictions depend on: weights and embeddings, or counts and exponents."""
        return self.model_.size

    @property
    def fingerprint_(self) -> str | None:
        """Identify what was counted: 64 digits, equal on every machine for equal text, tokenizers, and settings.

        None for a model without its counts.
        """
        return living.counted_fingerprint(self)

    @property
    def frequencies_(self) -> Array:
        """How often each token was counted, (N,)."""
        return self.statistics_.frequencies

    @property
    def references_(self) -> NgramCounts | None:
        """N-gram counts of the training text: those in the model's own sums, if it has any."""
        own = evaluate.references_of(self.model_)
        return self.statistics_.ngrams if own is None else own

    def save(self, folder: str | Path, extra_files: Mapping[str, Content] | None = None, compact: bool = False) -> None:
        """Write the model folder, with `extra_files` in it. Atomic: a reader finds the old model or the new one.

        A `compact` folder of a counted model lacks the tables, which follow from its counts: they are solved whenever
        it is loaded.
        """
        with progress_bar("save", unit=None):
            folders.write(living.unchanging(self), Path(folder), extra_files or {}, compact=compact)

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


def _restored(kind: type[SaffuLM], device: str, contents: Mapping[str, bytes]) -> SaffuLM:
    """The model whose folder holds these files, read into memory."""
    with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
        for name, content in contents.items():
            (Path(folder) / name).write_bytes(content)
        lm = kind.load(folder, device, check=True)
        for name in ("statistics_", "ledger_"):  # otherwise read on first use
            getattr(lm, name)
        lm.folder = None
    return lm
