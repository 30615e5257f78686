"""Backpropagation from a start: Adam over shuffled folds of a corpus, early stopping, the best weights kept.

All that is random follows from the seed and the place in the run, and a run's state is saved as a whole, so a run
that was interrupted and resumed ends with the weights of one that never was.
"""

import copy
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from saffu import checkpoint, evaluate
from saffu.capture import CapturedStep, side_stream
from saffu.config import TrainingConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.distributed import ALONE, Ranks, talking
from saffu.errors import SaffuError
from saffu.evaluate import Score
from saffu.network import Network
from saffu.own_counts import OwnCounts
from saffu.shuffle import ShuffledFold, seed_of
from saffu.signals import interruptions
from saffu.wording import number_of

if TYPE_CHECKING:
    from saffu.model import SaffuLM

DEV_TARGETS = 100_000  # of the held-out text, scored after each fold
SETTLE = 64  # steps after which their losses are fetched from the device and looked at
DIVERGED = "training has diverged: {}; begin again with a lower rate"
LEAST_EMBEDDING = 1e-8  # embeddings that are trained stay above it

OnFold = Callable[[dict[str, Any]], None]


@dataclass
class Progress:
    """Where a run stands."""

    fold: int = 0  # being trained on; 0 until the start has been scored
    step: int = 0  # steps done in this fold
    steps: int = 0  # and in all
    tokens: int = 0  # targets seen in all
    fold_tokens: int = 0
    fold_nll: float = 0.0
    fold_seconds: float = 0.0
    seconds: float = 0.0  # of work over all sittings, the start's included
    previous: float = math.inf  # dev perplexity before this fold
    best: float = math.inf
    best_fold: int = 0
    rises: int = 0  # of dev perplexity, in all
    ended: str = ""  # why


class Diverged(SaffuError):
    """The loss is no finite number any more."""


class Backprop:
    """A run of backpropagation. `lm.network_` keeps the best weights so far, `network` has those being trained."""

    def __init__(
        self,
        lm: "SaffuLM",
        corpus: TokenCorpus,
        dev: TokenCorpus,
        settings: TrainingConfig,
        text: Any = None,
        ranks: Ranks = ALONE,
    ):
        """`text` says where the corpora came from, for whoever resumes the run.

        Of several processes (`ranks`), each takes its part of every batch, and gradients are averaged.
        """
        if not dev.targets:
            raise SaffuError("backpropagation needs held-out text to know when to stop; give some as `dev`")
        self.lm, self.settings, self.text = lm, settings, text
        self.fingerprint = checkpoint.fingerprint(corpus)
        if settings.fit_share < 1:
            corpus = corpus.divided(settings.fit_share)[1]
        if not corpus.targets:
            raise SaffuError("no documents are left to train on; lower `fit_share` or give more text")
        self.corpus, self.device, self.ranks = corpus, lm.device, ranks
        self.dev = ranks.share(dev.thinned(DEV_TARGETS)).to(lm.device)
        self.network = copy.deepcopy(lm.trainable_network())
        for unit in self.network.every_unit():
            unit.dropout.p = settings.dropout
            if settings.free_embeddings:
                embeddings = unit.E
                del unit.E
                unit.E = nn.Parameter(embeddings)
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=torch.tensor(settings.rate, device=self.device),
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        narrow = settings.precision == "bfloat16" or (settings.precision == "auto" and on_gpu)
        if narrow and not on_gpu:
            require_bfloat16()
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=narrow)
        may_capture = on_gpu and settings.capture and not lm.config.documents and ranks.size == 1
        self.captured = CapturedStep(self._step) if may_capture else None
        self.loss = ranks.parallel(Loss(self))
        self.own_counts = OwnCounts.of(lm) if settings.leave_out else None
        self.resumed_random_state: Tensor | None = None
        self.progress = Progress(seconds=lm.log_[-1].get("seconds", 0.0) if lm.log_ else 0.0)
        self._losses: list[Tensor] = []  # of the steps not yet looked at, on the device

    @property
    def folds(self) -> int:
        """How many folds a pass over the corpus has."""
        return min(self.corpus.documents, max(1, round(self.corpus.targets / self.lm.config.fold)))

    def run(self, folder: Path | None = None, on_fold: OnFold | None = None) -> None:
        """Train to the end, saving the model and the run in `folder` every so often.

        SIGINT and SIGTERM are raised as KeyboardInterrupt after the step at hand, when all is saved. A run that
        diverges leaves the best weights so far, and nothing to resume.
        """
        self.lm.ledger_ = None  # from here on its weights do not follow from counts
        try:
            self._run(folder, on_fold)
        except Diverged as error:
            if folder is None:
                raise
            if self.ranks.is_first:
                self.lm.save(folder)
            raise Diverged(f"{error}; the best weights until then are in {folder}") from None

    def _run(self, folder: Path | None, on_fold: OnFold | None) -> None:
        progress, batch = self.progress, self.settings.batch
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(cuda), side_stream(self.device), interruptions() as interrupted:
            self._seed()
            self._since = saved = time.perf_counter()
            if progress.fold == 0:
                self._end_fold(on_fold)
                self._save(folder)
            self._end_if_due()  # a run resumed with a higher max_folds is not at its end any more
            while not progress.ended:
                self._read_clock()  # so that the fold's own time begins here
                fold = ShuffledFold(self.corpus, self.folds, progress.fold, self.network, self.lm.config.seed)
                with self._bar(fold.targets) as bar:
                    while progress.step * batch < fold.targets:
                        self._losses.append(self.train_on(self._part_of_batch(fold)))
                        progress.step += 1
                        progress.steps += 1
                        due, stop = time.perf_counter() - saved >= self.settings.save_every, bool(interrupted)
                        if self.ranks.size > 1:  # all processes must agree, which they do now and then
                            meeting = len(self._losses) == SETTLE
                            due, stop = meeting and self.ranks.any(due), meeting and self.ranks.any(stop)
                        if due or stop or len(self._losses) == SETTLE:
                            self._settle(fold.targets)
                            bar.update(progress.fold_tokens - bar.n)
                            bar.set_postfix_str(f"train perplexity {self.train_perplexity:.1f}", refresh=False)
                        if due or stop:
                            self._save(folder)
                            self._read_clock()
                            saved = self._since
                        if stop:
                            raise KeyboardInterrupt
                self._settle(fold.targets)
                self._end_fold(on_fold)
                self._end_if_due()
                if self.ranks.size > 1:  # a fold may be too short for them to have met
                    stop = self.ranks.any(bool(interrupted))
                    if self.ranks.any(time.perf_counter() - saved >= self.settings.save_every) or stop:
                        self._save(folder)
                        saved = time.perf_counter()
                    if stop:
                        raise KeyboardInterrupt
            self._save(folder)

    def _part_of_batch(self, fold: ShuffledFold) -> Targets:
        """The targets of the step at hand that fall to this process."""
        begin, ranks = self.progress.step * self.settings.batch, self.ranks
        batch = min(self.settings.batch, fold.targets - begin)
        first, last = (batch * part // ranks.size for part in (ranks.rank, ranks.rank + 1))
        return fold.batch(begin + first, last - first)

    def train_on(self, targets: Targets) -> Tensor:
        """One step of Adam; gives the loss before it, summed over the targets, on the device."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(self.rate())
        if self.captured and len(targets.ids) == self.settings.batch:
            return self.captured(targets)
        return self._step(targets)

    def _step(self, targets: Targets) -> Tensor:
        self.network.train()
        self.optimizer.zero_grad()
        loss: Tensor = self.loss(targets)
        with talking():
            (self.ranks.size * loss / self.settings.batch).backward()  # so that a short last batch weighs less
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        self.optimizer.step()
        if self.settings.free_embeddings:
            for unit in self.network.every_unit():
                keep_on_simplex(unit.E)
        return loss.detach()

    def rate(self) -> float:
        """The learning rate of the step at hand."""
        settings, progress = self.settings, self.progress
        rate = settings.rate * min(1.0, (progress.steps + 1) / (settings.warmup + 1))
        if settings.schedule == "cosine":
            of_fold = progress.step * settings.batch * self.folds / self.corpus.targets
            done = (progress.fold - 1 + of_fold) / settings.max_folds
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return rate

    def logits(self, targets: Targets) -> Tensor:
        """Of the vocabulary, (n, N); only the product with M, the largest, may be in bfloat16."""
        if not self.network.config.hidden_dimension:
            logits: Tensor = self.network(targets)
            return logits
        hidden = self.network.hidden(targets)
        with self.autocast:
            logits = hidden @ self.network.M
        logits = logits.to(hidden.dtype)
        if self.own_counts is not None:
            own = self.own_counts(hidden.detach(), targets.ids)
            logits = logits.scatter_add(1, targets.ids[:, None], -own[:, None])
        return logits

    @property
    def train_perplexity(self) -> float:
        return perplexity(self.progress.fold_nll, self.progress.fold_tokens)

    def _settle(self, fold_targets: int) -> None:
        """Look at the losses of the last steps: add them up, or stop if one is no number."""
        progress = self.progress
        losses = self.ranks.sum(torch.stack(self._losses)).tolist() if self._losses else []
        self._losses = []
        for step, loss in enumerate(losses, progress.steps - len(losses) + 1):
            if not math.isfinite(loss):
                raise Diverged(DIVERGED.format(f"the loss is {loss} at step {step}"))
            progress.fold_nll += loss
        seen = min(progress.step * self.settings.batch, fold_targets)
        progress.tokens += seen - progress.fold_tokens
        progress.fold_tokens = seen
        progress.fold_seconds += self._read_clock()

    def _end_fold(self, on_fold: OnFold | None) -> None:
        """Score the held-out text, keep the weights if they are the best so far, log, and turn to the next fold."""
        progress = self.progress
        self.network.eval()
        here = evaluate.evaluate(self.network, self.dev) if self.dev.targets else Score(0.0, 0, 0)
        score = self.ranks.sum_score(here)
        dev = perplexity(score.nll, score.targets)
        if not math.isfinite(dev):
            raise Diverged(DIVERGED.format(f"the held-out text has perplexity {dev} after fold {progress.fold}"))
        progress.rises += dev > progress.previous
        progress.previous = dev
        if best := dev < progress.best:
            progress.best, progress.best_fold = dev, progress.fold
            self.lm.trainable_network().load_state_dict(self.network.state_dict())
        self._read_clock()
        row: dict[str, Any] = {"stage": f"train {progress.fold}" if progress.fold else f"{self.settings.start} start"}
        row |= {"fold": progress.fold, "step": progress.steps, "tokens": progress.tokens}
        if progress.fold:
            row |= {"train_perplexity": self.train_perplexity, "rate": float(self.optimizer.param_groups[0]["lr"])}
            row["tokens_per_second"] = round(progress.fold_tokens / progress.fold_seconds)
        row |= {"dev_perplexity": dev, "dev_bits_per_byte": score.bits_per_byte, "best": best, "rises": progress.rises}
        row["seconds"] = round(progress.seconds, 3)
        row["sample"] = self.lm.sample(self.lm.config.seed, network=self.network) if self.ranks.is_first else ""
        self.lm.log_.append(row)
        progress.fold += 1
        progress.step, progress.fold_tokens, progress.fold_nll, progress.fold_seconds = 0, 0, 0.0, 0.0
        if on_fold:
            on_fold(row)

    def _end_if_due(self) -> None:
        progress, settings = self.progress, self.settings
        progress.ended = ""
        if progress.rises >= settings.rises:
            progress.ended = f"the perplexity of the held-out text has risen {number_of(progress.rises, 'time')}"
        elif settings.max_folds and progress.fold > settings.max_folds:
            progress.ended = f"{number_of(settings.max_folds, 'fold')} done"

    def _read_clock(self) -> float:
        """Seconds since it was last read."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        self.progress.seconds += passed
        return passed

    def _bar(self, targets: int) -> "tqdm[Any]":
        return tqdm(
            total=targets,
            initial=self.progress.fold_tokens,
            desc=f"fold {self.progress.fold}",
            unit=" tokens",
            unit_scale=True,
            leave=False,
            disable=None,
        )

    def random_state(self) -> Tensor:
        """Of the generator that dropout draws from."""
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _seed(self) -> None:
        state = self.resumed_random_state if self.ranks.is_first else None
        if state is None or state.shape != self.random_state().shape:  # a new run, or one from another kind of device
            process = [self.ranks.rank] if self.ranks.rank else []  # each leaves out inputs of its own
            torch.manual_seed(seed_of(self.lm.config.seed, "dropout", self.progress.steps, *process))
        elif self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)

    def _save(self, folder: Path | None) -> None:
        if folder is None or not self.ranks.is_first:
            return
        if not all(torch.isfinite(weight).all() for weight in self.network.parameters()):
            raise Diverged(DIVERGED.format(f"a weight is no finite number after step {self.progress.steps}"))
        self.lm.save(folder, checkpoint.files(self))


class Loss(nn.Module):
    """−Σ log p of some targets, as a module, for that is what averages its gradients over processes."""

    def __init__(self, run: Backprop):
        super().__init__()
        self.network, self.logits = run.network, run.logits

    def forward(self, targets: Targets) -> Tensor:
        if not len(targets.ids):  # of a batch with fewer targets than processes
            return 0 * torch.stack([weight.sum() for weight in self.parameters()]).sum()
        return nn.functional.cross_entropy(self.logits(targets), targets.ids, reduction="sum")


def cold_start(network: Network, seed: int, scale: float) -> None:
    """Random weights in place of solved ones: normal, of spread scale/√inputs. The embeddings stay."""
    generator = torch.Generator().manual_seed(seed_of(seed, "cold start"))
    with torch.no_grad():
        for weight in network.parameters():
            drawn = torch.randn(weight.shape, generator=generator) * scale / math.sqrt(weight.shape[0])
            weight.copy_(drawn)


@torch.no_grad()
def keep_on_simplex(embeddings: Tensor) -> None:
    """Rows positive, of unit sum, as a SAFFU's inputs must be."""
    embeddings.clamp_(min=LEAST_EMBEDDING)
    embeddings.div_(embeddings.sum(1, keepdim=True))


def perplexity(nll: float, targets: int) -> float:
    """exp of the mean surprise, infinite where that is beyond all numbers."""
    mean = nll / max(1, targets)
    return math.exp(mean) if mean < 700 else (mean if math.isnan(mean) else math.inf)


def require_bfloat16() -> None:
    """Some CPUs announce instructions for bfloat16 that end the process when used, so another process tries them."""
    attempt = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    if subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False).returncode:
        raise SaffuError("this CPU cannot multiply in bfloat16; use `precision` float32")
