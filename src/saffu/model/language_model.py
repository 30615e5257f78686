"""SaffuLM: a language model in scikit-learn's manners. Settings in the constructor, text in `fit`."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saffu import checkpoint, evaluate, generate, living, model_files, store, train
from saffu.calibrated_network import CalibratedFit
from saffu.config import SaffuConfig, TrainingConfig
from saffu.corpus import TokenCorpus
from saffu.devices import usable_device
from saffu.distributed import ALONE, Ranks
from saffu.errors import NotFittedError, SaffuError
from saffu.evaluate import Score
from saffu.explicit import Counts
from saffu.fit import ExplicitFit, stages
from saffu.generate import Sampling
from saffu.ledger import Ledger
from saffu.network import Network
from saffu.ngram import NgramCounts
from saffu.product import Product, fit_product
from saffu.tokenizer import EOD, Tokenizer
from saffu.views import ViewCounts

if TYPE_CHECKING:
    from saffu.embeddings import Embeddings
    from saffu.explain import Explanation

Text = Iterable[str] | TokenCorpus
LOGGED_TARGETS = 100_000  # of the development text, scored after each stage


class SaffuLM:
    """A language model counted from text. Without a config it is the calibrated preset.

    >>> lm = SaffuLM(SaffuConfig(block=16, radius=4)).fit(["the cat sat on the mat", "the dog sat on the log"])
    >>> lm.generate("the cat", seed=1)  # doctest: +SKIP

    After `fit` (learned things end in an underscore):
    network_ the torch module; tokenizer_; counts_ the sums behind every weight, by layer; frequencies_ of the
    targets; references_ the n-gram counts behind the reference perplexities; trained_on_ documents, tokens and bytes;
    ledger_ which documents are counted, if these can still change; log_ one row a stage.
    """

    config: SaffuConfig
    device: torch.device
    network_: Network | Product
    tokenizer_: Tokenizer
    counts_: dict[str, Counts]
    frequencies_: Tensor
    references_: NgramCounts | None
    trained_on_: dict[str, Any]
    ledger_: Ledger | None
    log_: list[dict[str, Any]]

    def __init__(
        self,
        config: SaffuConfig | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        encoder: "SaffuLM | None" = None,
        device: str = "cpu",
    ):
        """A `tokenizer` that is given is used as it is; otherwise `fit` learns one from its text.

        With an `encoder`, a fitted model, `fit` takes its settings, tokenizer and encoder and counts the decoder only:
        models fitted so can be merged.
        """
        if encoder is not None and (config or tokenizer):
            raise SaffuError("an encoder brings its settings and its tokenizer; leave out config and tokenizer")
        self.config = config or (encoder.config if encoder else SaffuConfig.preset("calibrated"))
        self.device = usable_device(device)
        self._given_tokenizer = encoder.tokenizer_ if encoder else tokenizer
        self._encoder = encoder

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            """Called for what is not there: learned things, before `fit`."""
            if name in (*SaffuLM.__annotations__, "parameters_", "embeddings_"):
                raise NotFittedError(f"this model has no {name} yet; call fit first, or saffu.load a fitted one")
            raise AttributeError(f"'SaffuLM' object has no attribute {name!r}")

    def __repr__(self) -> str:
        preset = SaffuConfig.preset(self.config.solution).to_dict()
        changed = [f"{name}={value!r}" for name, value in self.config.to_dict().items() if value != preset[name]]
        settings = ", ".join([self.config.solution, *changed])
        if "network_" not in self.__dict__:
            return f"<SaffuLM {settings}; not fitted>"
        tokens, vocabulary = self.trained_on_["tokens"], len(self.tokenizer_)
        return f"<SaffuLM {settings}; {tokens:,} tokens counted, vocabulary {vocabulary:,}>"

    def fit(
        self,
        documents: Text,
        dev: Text | None = None,
        *,
        embeddings: Tensor | None = None,
        references: bool = True,
        training: TrainingConfig | None = None,
        ranks: Ranks = ALONE,
        on_stage: Callable[[dict[str, Any]], None] | None = None,
    ) -> "SaffuLM":
        """Count the documents, blank ones left out, and solve the model; returns self.

        `dev` is scored after each stage. `embeddings` (N, D), any word vectors by token id, take the place of the
        bit-cipher's. `training`, if `backprop` is to follow, tells what share of the documents to count, or to draw
        the weights at random instead. `on_stage` is called with each row of `log_`. Of several processes (`ranks`), all
        of which must have the same documents, the first scores `dev` and is the one to have a calibrated model.
        """
        began = time.perf_counter()
        if not isinstance(documents, TokenCorpus) and iter(documents) is documents:
            documents = list(documents)  # it is read twice
        if self._given_tokenizer:
            self.tokenizer_ = self._given_tokenizer
        elif isinstance(documents, TokenCorpus):
            raise SaffuError("a tokenised corpus needs its tokenizer; pass it as SaffuLM(…, tokenizer=…)")
        else:
            self.tokenizer_ = Tokenizer.train(
                documents,
                words=self.config.words,
                kept_words=self.config.kept_words,
                count_by=self.config.count_by,
            )
        corpus = self.tokenize(documents)
        if corpus.targets == 0:
            raise SaffuError("the corpus holds no text; give at least one non-empty document")
        scored = self.tokenize(dev).thinned(LOGGED_TARGETS) if dev is not None else None
        self.trained_on_ = {"documents": corpus.documents, "tokens": corpus.targets, "bytes": corpus.bytes}
        self.frequencies_ = corpus.frequencies(len(self.tokenizer_))
        self.counts_, self.log_ = {}, []
        if self._encoder is not None:
            if embeddings is not None or training is not None:
                raise SaffuError("a model with another's encoder takes no embeddings and no training; leave them out")
            counted_alone = living.recount(self._encoder, corpus)
            self.network_, self.counts_ = counted_alone.network_, counted_alone.counts_
            self.references_, self.ledger_ = counted_alone.references_, counted_alone.ledger_
            if not (references or living.views_hold_references(self)):
                self.references_ = None
            self._log_stage("recount", corpus, scored, began, on_stage)
            return self
        vocabulary, share = len(self.tokenizer_), ranks.share(corpus)
        if self.config.calibrate and ranks.size > 1:
            raise SaffuError("exponents are measured by one process; fit this network without torchrun")
        living_model = not (training or self.config.tune or self.config.calibrate)
        self.ledger_ = Ledger.of(corpus) if ranks.is_first and living_model else None
        self.references_ = None
        if references and not living.views_hold_references(self):
            self.references_ = ranks.sum_ngrams(evaluate.count_references(share, vocabulary))
        if self.config.solution == "calibrated":
            if embeddings is not None or training is not None:
                raise SaffuError("a calibrated model takes no embeddings and no training; use the paper's solution")
            views = ranks.sum_views(ViewCounts.count(share.to(self.device), self.config, vocabulary))
            if not ranks.is_first:
                return self
            self.network_ = fit_product(self.config, corpus, vocabulary, views, self.device)
            self.references_ = self.network_.references() or self.references_
            self._log_stage("calibrated", corpus, scored, began, on_stage)
            return self
        fragments = corpus.fragments(self.config.block) if self.config.block else 0
        fit = (CalibratedFit if self.config.calibrate else ExplicitFit)(
            self.config,
            self.frequencies_,
            corpus.documents,
            fragments,
            embeddings=embeddings,
            device=self.device,
            reduce=ranks.sum_counts,
        )
        self.network_, self.counts_ = fit.network, fit.counts
        if training and training.start == "cold":
            train.cold_start(self.network_, self.config.seed, training.cold_scale)
            return self
        counted = corpus.divided(training.fit_share)[0] if training and training.fit_share < 1 else corpus
        for stage in stages(fit, counted.to(self.device), ranks.share):
            if self.config.store == "float16":  # so that what is scored is what will be read back
                self.network_.load_state_dict(store.narrowed(self.network_.state_dict()))
            exponents = fit.exponents if isinstance(fit, CalibratedFit) else {}
            if ranks.is_first:
                self._log_stage(stage, counted, scored, began, on_stage, exponents)
        return self

    def _log_stage(
        self,
        stage: str,
        counted: TokenCorpus,
        scored: TokenCorpus | None,
        began: float,
        on_stage: Callable[[dict[str, Any]], None] | None,
        exponents: dict[str, float] | None = None,
    ) -> None:
        row: dict[str, Any] = {"stage": stage, "tokens": counted.targets}
        row |= {"exponents": exponents} if exponents else {}
        seconds = round(time.perf_counter() - began, 3)
        if scored is not None and scored.targets:
            score = evaluate.evaluate(self.network_, scored)
            row |= {"dev_perplexity": score.perplexity, "dev_bits_per_byte": score.bits_per_byte}
        row |= {"seconds": seconds, "sample": self.sample(self.config.seed)}
        self.log_.append(row)
        if on_stage:
            on_stage(row)

    def backprop(
        self,
        documents: Text,
        dev: Text,
        training: TrainingConfig | None = None,
        *,
        folder: str | Path | None = None,
        on_fold: Callable[[dict[str, Any]], None] | None = None,
    ) -> "SaffuLM":
        """Go on from the fitted weights with Adam, until `dev` says stop; keep the best weights; return self.

        With a `folder`, the model and the state of the run are saved there every minute. `on_fold` is called with
        each new row of `log_`.
        """
        run = train.Backprop(self, self.tokenize(documents), self.tokenize(dev), training or TrainingConfig())
        run.run(None if folder is None else Path(folder), on_fold)
        return self

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        documents: Text,
        dev: Text,
        *,
        device: str | None = None,
        on_fold: Callable[[dict[str, Any]], None] | None = None,
    ) -> "SaffuLM":
        """The model of a `backprop` that was interrupted, trained on to its end with the same text."""
        folder = Path(folder)
        state = checkpoint.read_state(folder)
        lm = cls.load(folder, device or state["device"])
        run = train.Backprop(lm, lm.tokenize(documents), lm.tokenize(dev), state["settings"], state["text"])
        checkpoint.restore(run, folder, state)
        run.run(folder, on_fold)
        return lm

    def update(self, documents: Text) -> "SaffuLM":
        """Count these documents too; the encoder stays as it was fitted. Returns self."""
        living.update(self, documents)
        return self

    def forget(self, documents: Text, skip_uncounted: bool = False) -> int:
        """Count these documents no more, as if they had never been; refused if one of them is not counted.

        With `skip_uncounted` such documents are passed over. Gives how many were forgotten.
        """
        return living.forget(self, documents, skip_uncounted)

    def merge(self, *others: "SaffuLM") -> "SaffuLM":
        """A model that counts the documents of this one and of others with the same encoder."""
        return living.merge([self, *others])

    def tokenize(self, documents: Text) -> TokenCorpus:
        """Documents as a tokenised corpus, in memory (see `TokenCorpus.build` for text that does not fit).

        Blank ones, empty or all spaces, are no documents, as blank lines of files are none.
        """
        if isinstance(documents, TokenCorpus):
            return documents
        if isinstance(documents, str):
            raise SaffuError("documents is one string; give a list of documents, such as [text]")
        return TokenCorpus.build((text for text in documents if text.strip()), self.tokenizer_)

    def score(self, documents: Text) -> Score:
        """Total surprise (`nll`), targets, bytes, perplexity and bits per byte."""
        return evaluate.evaluate(self.network_, self.tokenize(documents))

    def perplexity(self, documents: Text) -> float:
        """exp of the mean surprise a token; models of different vocabularies compare by `score` in bits per byte."""
        return self.score(documents).perplexity

    def reference_scores(self, documents: Text) -> dict[str, Score]:
        """Scores of a unigram and of Kneser–Ney bigram and trigram models of the training text."""
        if self.references_ is None:
            raise SaffuError("this model keeps no n-gram references; fit it with references=True")
        return evaluate.evaluate_references(self.references_, self.tokenize(documents))

    def generate(self, prompt: str = "", **sampling: Any) -> str:
        """What follows the prompt, up to the document's end. Settings: see `saffu.Sampling`."""
        return self.generate_batch([prompt], **sampling)[0]

    def generate_batch(self, prompts: list[str], **sampling: Any) -> list[str]:
        """What follows each prompt; all are written at the same time."""
        return generate.complete(self.network_, self.tokenizer_, prompts, Sampling(**sampling))

    def stream(self, prompt: str = "", **sampling: Any) -> Iterator[str]:
        """`generate`, in pieces as they come."""
        return generate.stream_text(self.network_, self.tokenizer_, prompt, Sampling(**sampling))

    def explain(self, prompt: str = "") -> "Explanation":
        """What each part of the context adds to the logits of the token after the prompt (see `saffu.explain`)."""
        from saffu.explain import explain

        return explain(self.network_, self.frequencies_, self.tokenizer_.encode(prompt))

    def sample(self, seed: int, documents: int = 4, network: Network | Product | None = None) -> str:
        """A few short documents with their marks, as the paper's logs show them."""
        steps = generate.continue_prompts(
            network or self.network_, [[]] * documents, Sampling(max_tokens=12, seed=seed)
        )
        texts = []
        for tokens in zip(*steps, strict=True):
            end = "<eod>" if EOD in tokens else "…"
            texts.append("<sod>" + self.tokenizer_.decode(token for token in tokens if token is not None) + end)
        return "".join(texts)

    def trainable_network(self) -> Network:
        """The network, if it has weights."""
        if not isinstance(self.network_, Network):
            raise SaffuError("a calibrated model has counts, no weights to train; use the paper's solution to go on")
        return self.network_

    @property
    def embeddings_(self) -> "Embeddings":
        """Token and word vectors, and their nearest neighbours."""
        from saffu.embeddings import embeddings_of

        return embeddings_of(self.network_, self.tokenizer_, self.frequencies_)

    @property
    def parameters_(self) -> int:
        """How many stored numbers shape a prediction: weights and embeddings, or counts and exponents."""
        return self.network_.parameter_count()

    def save(
        self, folder: str | Path, beside: Mapping[str, bytes] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write the model folder: config.json, model, tokenizer, counts, n-grams, log, and files `beside`. Atomic.

        Further `facts` go into config.json.
        """
        model_files.write(self, Path(folder), beside or {}, facts or {})

    def export_hf(self, folder: str | Path) -> None:
        """Write a folder that transformers loads, and `saffu.load` too. Atomic."""
        from saffu.export import export_hf

        export_hf(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "SaffuLM":
        """The model that `save` wrote, its checksums tested."""
        return model_files.read(cls, Path(folder), device)
