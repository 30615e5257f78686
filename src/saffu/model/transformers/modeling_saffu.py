"""Language models made by saffu, for transformers. This file needs torch, numpy and transformers, not saffu.

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

The logits at a position predict the token after it. A document begins with the first token of a row, after `<sod>` and
after `<eod>`, and nothing before its beginning is seen; so `<sod>` may be left out, but with it in front the first
token of a text is predicted too. `<pad>` and what the attention mask leaves out are as if they were not there. There is
no cache, since a context is a few tokens. Weights stored in half precision are used as float32.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

PAD, SOD, FRG, EOD = 0, 1, 2, 3
PARAMETERS = {"W", "b", "U", "D", "M", "exponents"}  # what gradients may change; all else are buffers
ROWS = 128  # positions predicted at a time: arrays stay small enough to be reused
IMPOSSIBLE = -1e4  # logit of a probability of exactly 0: finite, so that 0 times its logarithm is 0
NEVER = np.iinfo(np.int64).max  # a key that no look-up asks for


class SaffuConfig(PretrainedConfig):
    """`config` has the settings of the model, as saffu names them; `tensors` the type and shape of each weight."""

    model_type = "saffu"

    def __init__(self, config: Any = None, tensors: Any = None, views: Any = None, vocab_size: int = 0, **other: Any):
        self.config, self.tensors, self.views = config or {}, tensors or {}, views or []
        self.vocab_size = vocab_size
        other.pop("checksums", None)  # of the files as they were exported; transformers may save other weights
        super().__init__(**other)


class Contexts(NamedTuple):
    """What precedes each of m targets in its document."""

    tokens: Tensor  # (B, T) the tokens of each row, those left out by the mask after all others
    row: Tensor  # (m,) of the target
    seen: Tensor  # (m,) how many tokens of the row precede the target
    age: Tensor  # (m,) how many of these belong to its document

    @classmethod
    def of(cls, input_ids: Tensor, real: Tensor, keep: Any) -> "Contexts":
        """Of the targets after some columns, where `real` (B, T) tells which tokens are there."""
        tokens = input_ids.long().gather(1, torch.argsort(~real, dim=1, stable=True))
        count = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        ended = torch.where((tokens == SOD) | (tokens == EOD), count, 0).cummax(1).values
        seen = real.long().cumsum(1)
        age = seen - nn.functional.pad(ended, (1, 0)).gather(1, seen)
        row = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(seen)
        return cls(tokens, *(part[:, keep].flatten() for part in (row, seen, age)))

    def split(self) -> Iterator["Contexts"]:
        for parts in zip(*(part.split(ROWS) for part in self[1:]), strict=True):
            yield Contexts(self.tokens, *parts)

    def at(self, distances: Tensor) -> Tensor:
        """The tokens so many places before each target, (m, J); `<pad>` where that is outside the document."""
        place = (self.seen[:, None] - distances).clamp(0, self.tokens.shape[1] - 1)
        inside = (distances >= 1) & (distances <= self.age[:, None])
        return torch.where(inside, self.tokens[self.row[:, None], place], PAD)


def wide(weight: Tensor) -> Tensor:
    """The weight in float32 at least."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


class SaffuForCausalLM(PreTrainedModel, GenerationMixin):
    """Sequences in, logits of every position out."""

    config_class = SaffuConfig
    _no_split_modules: list[str] = []  # noqa: RUF012

    def __init__(self, config: SaffuConfig):
        super().__init__(config)
        for name, (dtype, *shape) in config.tensors.items():
            owner: Any = self
            *path, leaf = name.split(".")
            for step in path:
                if step not in owner._modules:
                    owner.add_module(step, nn.Module())
                owner = owner._modules[step]
            # Weights are loaded in the type asked for, which is then the default; counts stay what they are.
            given = None if dtype.startswith("float") else getattr(torch, dtype)
            tensor = torch.zeros(shape, dtype=given)
            if leaf in PARAMETERS:
                owner.register_parameter(leaf, nn.Parameter(tensor))
            else:
                owner.register_buffer(leaf, tensor)
        self.next_logits = self.predictor()
        self.post_init()

    def predictor(self) -> "Network | Product":
        """What gives the logits (m, N) of what follows each context."""
        return Product(self) if self.config.config.get("solution") == "calibrated" else Network(self)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """Logits (B, T, N), or of the last `logits_to_keep` positions; with labels (B, T) their mean surprise as loss.

        Labels below `<eod>` are markers or padding, which are never predicted; they are ignored, like −100.
        """
        if input_ids is None:
            raise ValueError("a saffu model reads token ids; pass input_ids")
        real = input_ids != PAD
        if attention_mask is not None:
            real = real & attention_mask.bool()
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        contexts = Contexts.of(input_ids, real, keep)
        logits = torch.cat([self.next_logits(part) for part in contexts.split()])
        logits = logits.unflatten(0, (len(input_ids), -1))
        loss = None
        if labels is not None:
            labels = labels.masked_fill(labels < EOD, -100)
            counted = {"num_items_in_batch": others["num_items_in_batch"]} if "num_items_in_batch" in others else {}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **counted)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Any = None, **others: Any) -> Any:
        """All tokens each time: there is no cache."""
        kept = others.get("logits_to_keep") or 0
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": kept}

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self.next_logits = self.predictor()  # the last one may have solved other counts


class Network:
    """softmax([block unit, radial unit, document model]·M): each part gives a distribution, M decodes all of them.

    Without hidden bits the units decode straight to the vocabulary: their distributions are multiplied, and the prior
    that each of them holds is divided out again so that it counts once.
    """

    def __init__(self, weights: Any):
        self.weights, self.settings = weights, weights.config.config

    def __call__(self, contexts: Contexts) -> Tensor:
        settings, weights = self.settings, self.weights
        parts = []
        if settings["block"]:
            parts.append(self.unit_logits("block", *self.block_slots(contexts)))
        if settings["radius"]:
            distances = torch.arange(settings["radius"], 0, -1, device=contexts.seen.device)
            ids = contexts.at(distances)
            parts.append(self.unit_logits("radius", ids, ids[:, 0 if settings["head"] == "first" else -1]))
        if not settings["hidden_dimension"]:
            prior = (len(parts) - 1) * wide(weights.log_prior)
            return sum((torch.log_softmax(part, dim=1) for part in parts), start=-prior)
        if settings["documents"]:
            parts.append(self.document_means(contexts) @ wide(weights.D))
        # What is below 1e-30 is zero, as denormal numbers slow everything.
        hidden = [nn.functional.threshold(torch.softmax(part, dim=1), 1e-30, 0.0) for part in parts]
        return torch.cat(hidden, dim=1) @ wide(weights.M)

    def block_slots(self, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Tokens (m, b) of the block so far, behind its marker (`<sod>` first, `<frg>` later), and the heads (m,)."""
        block = self.settings["block"]
        slot = torch.arange(block, device=contexts.seen.device)
        filled = 1 + contexts.age[:, None] % (block - 1)  # slots before the target, marker included
        marker = torch.where(contexts.age[:, None] < block - 1, SOD, FRG)
        ids = torch.where(slot == 0, marker, contexts.at(filled - slot))
        head = marker if self.settings["head"] == "first" else ids.gather(1, filled - 1)
        return ids, head.squeeze(1)

    def unit_logits(self, name: str, ids: Tensor, head: Tensor) -> Tensor:
        """−log softmax(X_h Xᵀ W + b) X U: slots (m, K) and heads (m,) to a unit's logits (m, outputs)."""
        unit = self.weights.units._modules[name]
        E = wide(unit.E)
        X = E[ids]  # (m, K, D)
        scores = torch.einsum("md,mkd->mk", E[head], X) @ wide(unit.W)
        if "b" in unit._parameters:
            scores = scores + wide(unit.b)
        A = -torch.log_softmax(scores, dim=1)  # (m, K)
        cat = self.settings[f"{name}_mode"] == "cat"
        H = (A[:, :, None] * X).flatten(1) if cat else torch.einsum("mk,mkd->md", A, X)
        return H @ wide(unit.U)

    def document_means(self, contexts: Contexts) -> Tensor:
        """The mean embedding of `<pad>` and all that precedes in the document, (m, D)."""
        E = next(iter(self.weights.units.children())).E.double()
        first, last = int(contexts.row[0]), int(contexts.row[-1])
        sums = nn.functional.pad(E[contexts.tokens[first : last + 1]].cumsum(1), (0, 0, 1, 0))
        row = contexts.row - first
        total = sums[row, contexts.seen] - sums[row, contexts.seen - contexts.age]
        return ((E[PAD] + total) / (contexts.age + 1)[:, None]).to(wide(self.weights.D).dtype)


class Product:
    """A product of counted views of the context, each a Kneser–Ney model raised to a measured exponent.

    log p(n | context) = γ log f_n + Σ_slots a_k log(p_k(n | x_k)/f_n) + Σ_memories a_v log p_v(n | x_1 x_2 …) − log Z

    What is stored is raw counts; the models are solved from them when they are first needed.
    """

    def __init__(self, weights: Any):
        self.weights = weights
        self.solved: list[View] = []

    def __call__(self, contexts: Contexts) -> Tensor:
        views = self.solved_views()
        distances = torch.arange(1, 1 + max(max(view.distances) for view in views), device=contexts.seen.device)
        nearest = torch.where(distances == contexts.age[:, None] + 1, SOD, contexts.at(distances))  # nearest first
        exponents, prior = self.weights.exponents.float(), self.weights.prior.float()
        slots = sum(exponent for exponent, view in zip(exponents[1:], views, strict=True) if view.is_slot)
        logits = ((exponents[0] - slots) * prior).expand(len(nearest), -1)
        for exponent, view in zip(exponents[1:], views, strict=True):
            logits = torch.addcmul(logits, view.log_distribution(nearest), exponent)
        return torch.cat([torch.full_like(logits[:, :EOD], IMPOSSIBLE), logits[:, EOD:]], dim=1)

    def solved_views(self) -> "list[View]":
        """The views' models, on the device of the weights."""
        device = self.weights.prior.device
        if not self.solved or self.solved[0].unigram.device != device:
            stored = {name: unpacked(counts) for name, counts in self.weights.counts.named_children()}
            self.solved = [self.solved_view(view, stored, device) for view in self.weights.config.views]
        return self.solved

    def solved_view(self, view: dict[str, Any], stored: dict[str, Any], device: torch.device) -> "View":
        name, distances = view["name"], view["distances"]
        *context, targets, counts = stored[name] if name in stored else stored["memory"]
        if name not in stored:  # it saw a part of what the memory saw
            context = [context[distance - 1] for distance in distances]
        classes = None
        if view["classes"]:
            classes = self.weights.classes._buffers[name].cpu().numpy().astype(np.int64)
            context = [classes[tokens] for tokens in context]
        return View(distances, classes, context, targets, counts, self.weights.config.vocab_size, device)


def unpacked(stored: Any) -> list[np.ndarray]:
    """Packed n-grams by column (the context's tokens, nearest first, then the target), and their counts."""
    order, base = stored.shape.tolist()
    keys, counts = stored.keys.cpu().numpy(), stored.counts.cpu().numpy()
    per_word = max(n for n in range(1, 64) if base**n <= 2**64)
    columns = []
    for word, first in zip(keys, range(0, order, per_word), strict=True):
        digits = min(per_word, order - first)
        columns += [word // np.uint64(base ** (digits - 1 - n)) % np.uint64(base) for n in range(digits)]
    return [column.astype(np.int64) for column in (*columns, counts)]


class View:
    """One part of the product: p(n | c) = mass(c, n) + backoff(c)·p(n | c less its oldest token)."""

    def __init__(
        self,
        distances: list[int],
        classes: np.ndarray | None,
        context: list[np.ndarray],
        targets: np.ndarray,
        counts: np.ndarray,
        vocabulary: int,
        device: torch.device,
    ):
        self.distances, self.is_slot = distances, len(distances) == 1 and classes is None
        self.classes = None if classes is None else torch.from_numpy(classes).to(device)
        *longer, shortest = kneser_ney(context, targets, counts, vocabulary)
        unigram = np.zeros(vocabulary)
        unigram[EOD:] = shortest.backoff[0] / (vocabulary - EOD)
        unigram[shortest.ngrams] += shortest.mass
        self.unigram = torch.from_numpy(np.maximum(unigram, 1e-30)).float().to(device)  # its logarithm must exist
        self.levels = [Level(solved, vocabulary, device) for solved in longer]  # longest contexts first

    def log_distribution(self, nearest: Tensor) -> Tensor:
        """log p(· | context), (m, N), of the tokens before each target (m, J), nearest first."""
        context = torch.stack([nearest[:, distance - 1] for distance in self.distances], dim=1)
        if self.classes is not None:
            context = self.classes[context]
        numbers = [torch.zeros_like(context[:, 0])]
        for level, token in zip(reversed(self.levels), context.T, strict=True):
            numbers.append(level.find(numbers[-1], token))
        weights = [torch.ones_like(self.unigram[:1]).expand(len(context))]
        for level, number in zip(self.levels, reversed(numbers), strict=False):
            weights.append(weights[-1] * level.backoff[number])
        probabilities = torch.outer(weights[-1], self.unigram)
        for level, number, weight in zip(self.levels, reversed(numbers), weights, strict=False):
            level.add_to(probabilities, number, weight)
        return probabilities.log_()


class Solved(NamedTuple):
    """A Kneser–Ney model's n-grams with contexts of one length, in sorted arrays."""

    contexts: np.ndarray  # number of the parent (the context less its oldest token) · vocabulary + that oldest token
    ngrams: np.ndarray  # number of the context · vocabulary + target
    backoff: np.ndarray  # of each context: the weight of its parent's distribution
    mass: np.ndarray  # of each n-gram: its discounted relative frequency


class Level:
    """The n-grams of a view with contexts of one length, laid out to be added to many distributions at once.

    Contexts with many successors, few but met all the time, have their masses as dense rows; the others as lists.
    """

    def __init__(self, solved: Solved, vocabulary: int, device: torch.device):
        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.vocabulary = vocabulary
        # The last context stands for all that were never seen: it has no n-grams, and leaves all to a shorter one.
        self.contexts = tensor(np.append(solved.contexts, NEVER))
        self.backoff = tensor(np.append(solved.backoff, 1.0)).float()
        owner = solved.ngrams // vocabulary
        sizes = np.bincount(owner, minlength=len(self.contexts))
        many = sizes > vocabulary // 16
        row = np.where(many, np.cumsum(many), 0)  # dense row of each context; row 0 is empty, for all others
        self.row, self.sizes = tensor(row), tensor(np.where(many, 0, sizes))
        self.begins = tensor(np.cumsum(sizes) - sizes)
        self.tokens = tensor((solved.ngrams % vocabulary).astype(np.int32))
        self.mass = tensor(solved.mass).float()
        self.rows = torch.zeros(int(many.sum()) + 1, vocabulary, device=device)
        inside = tensor(np.flatnonzero(many[owner]))
        self.rows[tensor(row[owner])[inside], self.tokens[inside].long()] = self.mass[inside]

    def find(self, parent: Tensor, token: Tensor) -> Tensor:
        """The number of each context, from that of its parent and its oldest token."""
        wanted = parent * self.vocabulary + token
        number = torch.searchsorted(self.contexts, wanted)
        return torch.where(self.contexts[number] == wanted, number, len(self.contexts) - 1)

    def add_to(self, probabilities: Tensor, number: Tensor, weight: Tensor) -> None:
        """probabilities (m, N) += weight · mass(context, ·) of the contexts with these numbers."""
        row = self.row[number]
        if row.any():
            probabilities.addcmul_(weight[:, None], self.rows[row])
        sizes = self.sizes[number]
        row = torch.arange(len(number), device=number.device).repeat_interleave(sizes)
        skipped = self.begins[number] - (sizes.cumsum(0) - sizes)
        entry = torch.arange(len(row), device=number.device) + skipped[row]
        probabilities.view(-1).index_add_(0, row * self.vocabulary + self.tokens[entry], self.mass[entry] * weight[row])


def kneser_ney(columns: list[np.ndarray], targets: np.ndarray, counts: np.ndarray, vocabulary: int) -> list[Solved]:
    """Interpolated modified Kneser–Ney (Chen & Goodman 1998), longest contexts first, from columns of n-grams.

    The longest n-grams, and those at the start of a document, which nothing precedes, keep their counts; any other
    counts the distinct tokens that precede it.
    """
    context = np.zeros_like(targets)
    contexts, raw = [np.zeros(1, dtype=np.int64)], []
    rows = np.arange(len(targets))  # those whose contexts are at least so long
    for column in columns:
        ends = column[rows] == PAD
        whole, rows = rows[ends], rows[~ends]
        raw.append(summed(context[ends] * vocabulary + targets[whole], counts[whole]))
        keys, context = np.unique(context[~ends] * vocabulary + column[rows], return_inverse=True)
        contexts.append(keys)
    ngrams, totals = summed(context * vocabulary + targets[rows], counts[rows])
    levels = [discounted(contexts[-1], ngrams, totals, vocabulary)]
    for length in reversed(range(len(raw))):
        parents = contexts[length + 1] // vocabulary
        preceded = parents[ngrams // vocabulary] * vocabulary + ngrams % vocabulary
        keys, values = raw[length]
        ngrams, totals = summed(np.append(keys, preceded), np.append(values, np.ones_like(preceded)))
        levels.append(discounted(contexts[length], ngrams, totals, vocabulary))
    return levels


def summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys, sorted, and the sums of their counts."""
    distinct, which = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(which, weights=counts, minlength=len(distinct)).astype(np.int64)


def discounted(contexts: np.ndarray, ngrams: np.ndarray, counts: np.ndarray, vocabulary: int) -> Solved:
    """Discount and normalise the counts within each context; the share taken off is the backoff."""
    owner = ngrams // vocabulary
    total = np.bincount(owner, weights=counts, minlength=len(contexts))
    taken = discounts(counts)[np.minimum(counts, 3)]
    backoff = np.bincount(owner, weights=taken, minlength=len(contexts)) / total
    return Solved(contexts, ngrams, backoff, (counts - taken) / total[owner])


def discounts(counts: np.ndarray) -> np.ndarray:
    """What to take off a count of 0, 1, 2, and 3 or more: from counts of counts (Chen & Goodman, eq. 26)."""
    n = np.bincount(np.minimum(counts, 5), minlength=5)[:5].astype(np.float64)
    k = np.arange(1, 4)
    if (n[k] > 0).all():
        d = k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[k + 1] / n[k]
        if ((d > 0) & (d <= k)).all():
            return np.array([0.0, *d])
    return np.array([0.0, 0.5, 1.0, 1.5])  # for too little data
