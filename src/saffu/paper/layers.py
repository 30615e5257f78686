"""The paper's theorem for any non-negative features and any targets: a classifier, heads, and units.

Eq. 3 needs no more than the co-occurrences of features with targets and the mean norm of the features. Both are sums,
so batches can be added, and subtracted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from saffu.errors import SaffuError, install_command
from saffu.paper import equations
from saffu.paper.equations import co_occurrence, explicit_solution

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
except ModuleNotFoundError:  # only ExplicitClassifier needs scikit-learn

    class BaseEstimator:  # type: ignore[no-redef]
        def __new__(cls, *_: Any, **__: Any) -> Any:
            raise SaffuError(f"{cls.__name__} needs scikit-learn; install it with `{install_command('paper')}`")

    class ClassifierMixin:  # type: ignore[no-redef]
        pass


Array = npt.NDArray[Any]
HELD_OUT = 5  # one of so many rows is held out to fit a scale
LARGEST_SCALE = 100.0  # that is fitted; the smallest is its inverse
HALVINGS = 20  # of the logarithm of that range, which leave five exact digits


def priming_number(F: Tensor, targets: float) -> float:
    """Return K̂ = Σ_m ‖H_m‖₁ / M, the mean norm of the features: each row of Y sums to one, so F has all their sums.

    >>> priming_number(torch.tensor([[2.0, 1.0], [1.0, 4.0]]), targets=4)
    2.0
    """
    return float(F.sum()) / max(targets, 1)


def solve(F: Tensor, targets: float, priming: float | None, smoothing: float) -> Tensor:
    """Return U (D, N) by Eq. 3 from the co-occurrences F (D, N) of so many targets; K is K̂ unless `priming` is given.

    >>> solve(torch.tensor([[2.0, 1.0], [1.0, 4.0]]), targets=4, priming=None, smoothing=0)  # log F − ½ log [3, 5]
    tensor([[ 0.1438, -0.8047],
            [-0.5493,  0.5816]])
    """
    K = priming_number(F, targets) if priming is None else priming
    if not K > 0:
        raise SaffuError("the priming number must be positive: set `priming`, or give features that are not all zero")
    return explicit_solution(F + smoothing, K)


def fit_scale(scores: Tensor, Y: Tensor) -> float:
    """Return the c that minimizes the cross-entropy of softmax(c · scores) with Y (m, N), convex in c, by bisection.

    >>> scores = torch.tensor([[2.0, 0.0]] * 4)  # three of four rows prefer their target by 2, so c is ½ ln 3
    >>> round(fit_scale(scores, torch.eye(2)[[0, 0, 0, 1]]), 4)
    0.5493
    """
    if not len(scores):
        raise SaffuError(f"n_samples=1, or a few, cannot fit a `scale`: give {HELD_OUT} rows or more, or set a number")
    low = -np.log(LARGEST_SCALE)
    high = np.log(LARGEST_SCALE)
    wanted = float((Y * scores).sum())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        expected = (torch.softmax(scores * np.exp(middle), dim=1) * scores).sum(1) @ Y.sum(1)
        low, high = (middle, high) if float(expected) < wanted else (low, middle)
    return float(np.exp((low + high) / 2))


def as_number(scale: float | str) -> float:
    """Return a scale that is given or fitted."""
    try:
        return float(scale)
    except ValueError:
        raise SaffuError(f'`scale` is a number or "fitted", not {scale!r}') from None


class HeadCounts:
    """F(H, Y) and the number of targets, added up batch by batch."""

    def __init__(self, linear: nn.Linear):
        self.F = linear.weight.new_zeros(linear.in_features, linear.out_features, dtype=torch.float64)
        self.targets = 0

    def add(self, H: Tensor, Y: Tensor) -> None:
        """Add features (m, D) and their targets: class ids (m,) or distributions (m, N)."""
        if Y.is_floating_point():
            self.F += co_occurrence(H, Y)
        else:
            self.F.index_add_(1, Y, H.T)
        self.targets += len(Y)


@torch.no_grad()
def solve_head(
    linear: nn.Linear,
    features: Tensor | Iterable[tuple[Tensor, Tensor]],
    targets: Tensor | None = None,
    *,
    priming: float | None = None,
    scale: float | str = 1.0,
    smoothing: float = 0.05,
) -> nn.Linear:
    """Set a layer's weights by Eq. 3, in one pass over the features that the rest of a network gives it.

    `features` (M, D) are not negative; `targets` are class ids (M,) or distributions (M, N). Or `features` are batches,
    each a pair of both. The settings are those of `ExplicitClassifier`; to fit a scale, a fifth of the features is kept
    in memory. A bias becomes zero. Returns the layer.

    >>> head = solve_head(nn.Linear(2, 2), torch.tensor([[3.0, 1.0], [1.0, 3.0]]), torch.tensor([0, 1]), smoothing=0)
    >>> head.weight  # log F − ¾ log 4
    Parameter containing:
    tensor([[ 0.0589, -1.0397],
            [-1.0397,  0.0589]], requires_grad=True)
    """
    total = HeadCounts(linear)
    rest = HeadCounts(linear)
    held_out: list[tuple[Tensor, Tensor]] = []
    for batch in [(features, targets)] if isinstance(features, Tensor) else features:
        H, Y = checked(linear, *batch)
        if scale == "fitted":
            row = total.targets + torch.arange(len(H), device=H.device)
            held = row % HELD_OUT == HELD_OUT - 1
            rest.add(H[~held], Y[~held])
            held_out.append((H[held], Y[held]))
        total.add(H, Y)
    U = solve(total.F, total.targets, priming, smoothing)
    if scale == "fitted":
        H, Y = (torch.cat(parts) for parts in zip(*held_out, strict=True))
        Y = Y if Y.is_floating_point() else one_hot(Y, linear.out_features).double()
        scale = fit_scale(H @ solve(rest.F, rest.targets, priming, smoothing), Y)
    linear.weight.copy_(U.T * as_number(scale))
    if linear.bias is not None:
        linear.bias.zero_()
    return linear


def checked(linear: nn.Linear, H: Tensor, Y: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return features and targets where the layer is, numbers in float64; an error if Eq. 3 is not for them."""
    inputs = linear.in_features
    outputs = linear.out_features
    if Y is None or H.shape != (len(H), inputs) or Y.shape != (len(H), outputs)[: 1 + Y.is_floating_point()]:
        raise SaffuError(f"features must be (M, {inputs}), and targets class ids (M,) or distributions (M, {outputs})")
    if not Y.is_floating_point() and Y.clamp(0, outputs - 1).ne(Y).any():
        raise SaffuError(f"class ids must be from 0 to {outputs - 1}: one for each output of the layer")
    if not (H.isfinite() & (H >= 0)).all():
        raise SaffuError("features must be finite and not negative: give what follows a ReLU, a sigmoid, or a softmax")
    Y = Y.to(linear.weight.device)
    return H.to(linear.weight.device, torch.float64), Y.double() if Y.is_floating_point() else Y


class ExplicitClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A softmax layer over non-negative features, dense or sparse, solved from counts: Eq. 3 for scikit-learn.

    `priming` is the priming number; None measures it: K̂, the mean 1-norm of the features. `scale` multiplies the log
    scores: 1.0 as printed; "fitted" solves the layer from four fifths of the first data and finds the scale that
    predicts the last fifth best. `smoothing` is added to each co-occurrence; all must be positive.

    Learned: `co_occurrence_` (D, N), `class_count_` (N,), `classes_`, `priming_`, `scale_`, and `weights_` (D, N), the
    paper's U.

    >>> layer = ExplicitClassifier().fit([[3, 1, 0], [2, 0, 1], [0, 1, 4], [1, 0, 3]], ["a", "a", "b", "b"])
    >>> layer.predict([[2, 0, 0], [0, 0, 2]]).tolist()
    ['a', 'b']
    """

    def __init__(self, *, priming: float | None = None, scale: float | str = 1.0, smoothing: float = 0.05):
        """Keep the settings; `fit` or the first `partial_fit` uses them."""
        self.priming = priming
        self.scale = scale
        self.smoothing = smoothing

    def fit(self, X: Any, y: Any) -> ExplicitClassifier:
        """Count features (M, D) by their classes (M,), and solve. What was counted before is dropped."""
        X, y = self._validated(X, y, reset=True)
        check_classification_targets(y)
        return self._begin(X, y, np.unique(y))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> ExplicitClassifier:
        """Count more, and solve again; a fitted scale is kept. The first call needs `classes`: all that will occur."""
        if hasattr(self, "classes_"):
            F, count = self._count(X, y)
            return self._solve(self.co_occurrence_ + F, self.class_count_ + count)
        if classes is None:
            raise SaffuError("the first `partial_fit` needs `classes`, a list of all classes that will occur")
        X, y = self._validated(X, y, reset=True)
        return self._begin(X, y, np.unique(classes))

    def partial_forget(self, X: Any, y: Any) -> ExplicitClassifier:
        """Subtract what was counted, and solve again: exact for integers, to rounding for others. The scale is kept."""
        check_is_fitted(self)
        F, count = self._count(X, y)
        rounding = 1e-9 * (self.co_occurrence_ + self.co_occurrence_.max())
        if (F - self.co_occurrence_ > rounding).any() or (count > self.class_count_).any():
            raise SaffuError("these rows were not counted, or not that often: subtract only what was added")
        return self._solve(np.maximum(self.co_occurrence_ - F, 0), self.class_count_ - count)

    def predict_log_proba(self, X: Any) -> Array:
        """Return ln p (M, N) of the classes, in the order of `classes_`."""
        log_p: Array = torch.log_softmax(torch.from_numpy(self._scores(X)), dim=1).numpy()
        return log_p

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (M, N) of the classes, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(1)])

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        return np.asarray(self.scale_ * (X @ self.weights_))

    def _validated(self, X: Any, y: Any, reset: bool) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", reset=reset)
        check_non_negative(X, f"X in {type(self).__name__}")
        return X, y

    def _begin(self, X: Any, y: Any, classes: Array) -> ExplicitClassifier:
        Y = memberships(y, classes)
        scale = self.scale
        if scale == "fitted":
            held = np.arange(len(y)) % HELD_OUT == HELD_OUT - 1
            weights = self._weights(X[~held].T @ Y[~held], (~held).sum())
            scale = fit_scale(torch.from_numpy(X[held] @ weights), torch.from_numpy(Y[held]))
        scale = as_number(scale)
        self._solve(X.T @ Y, Y.sum(0))
        self.classes_ = classes
        self.scale_ = scale
        return self

    def _count(self, X: Any, y: Any) -> tuple[Array, Array]:
        X, y = self._validated(X, y, reset=False)
        Y = memberships(y, self.classes_)
        return X.T @ Y, Y.sum(0)

    def _solve(self, F: Array, count: Array) -> ExplicitClassifier:
        self.weights_ = self._weights(F, count.sum())  # first: if this is an error, nothing changes
        self.priming_ = self.priming or priming_number(torch.from_numpy(F), count.sum())
        self.co_occurrence_ = F
        self.class_count_ = count
        return self

    def _weights(self, F: Array, targets: float) -> Array:
        return solve(torch.from_numpy(F), targets, self.priming, self.smoothing).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.classifier_tags.poor_score = True  # on two features that are not counts, as of MultinomialNB
        return tags


def memberships(y: Array, classes: Array) -> Array:
    """Return Y (M, N): a one where a row belongs to a class.

    >>> memberships(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    columns = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    if (classes[columns] != y).any():
        raise SaffuError("a row has a class that is not in `classes`: name all of them in the first call")
    Y: Array = np.eye(len(classes))[columns]
    return Y


def coerced(X: Tensor) -> Tensor:
    """Pass vectors that are not distributions through softmax (Sec. 2.4).

    >>> coerced(torch.tensor([[0.9, 0.1], [-1.0, -1.0]]))
    tensor([[0.9000, 0.1000],
            [0.5000, 0.5000]])
    """
    proper = (X >= 0).all(-1, keepdim=True) & ((X.sum(-1, keepdim=True) - 1).abs() < 1e-3)
    return torch.where(proper, X, torch.softmax(X, dim=-1))


class SAFFU(nn.Module):
    """The self-attentive feed-forward unit for torch, Eq. 1: softmax(−log softmax(X_h Xᵀ W) X U), of K vectors X.

    Vectors (M, K, D) that are not distributions are passed through softmax; the last one queries attention. In mode
    "sum" the weighted vectors are added, in mode "cat" each has its own rows of U. Called, the unit returns logits
    (M, N). `solve` sets W and U from data; they can be trained like those of any module.
    """

    W: nn.Parameter  # (K, K) attention
    U: nn.Parameter  # (D or K·D, N) decoder

    def __init__(self, slots: int, dimension: int, outputs: int, mode: str = "sum"):
        if slots < 2 or mode not in ("sum", "cat"):
            raise SaffuError('attention needs two `slots` or more, and `mode` is "sum" or "cat"')
        super().__init__()
        self.slots = slots
        self.mode = mode
        self.W = nn.Parameter(torch.ones(slots, slots))  # uniform attention
        self.U = nn.Parameter(torch.zeros(dimension * (slots if mode == "cat" else 1), outputs))

    def forward(self, X: Tensor) -> Tensor:
        """Return logits (M, N) of vectors (M, K, D)."""
        X = coerced(X)
        return self.hidden(X, similarities(X), self.W) @ self.U

    def hidden(self, X: Tensor, Q: Tensor, W: Tensor) -> Tensor:
        """Return H: Σ_k A_k X_k, (M, D), or all A_k X_k, (M, K·D)."""
        weighted = equations.attention_weights(Q @ W)[:, :, None] * X
        return weighted.sum(1) if self.mode == "sum" else weighted.flatten(1)

    @torch.no_grad()
    def solve(
        self, X: Tensor, targets: Tensor, *, rounds: int = 10, scale: float | str = 1.0, smoothing: float = 0.05
    ) -> float:
        """Set W and U from vectors and class ids (M,), and return the loss on the fifth of them that is held out.

        Of all rounds, the W with the lowest loss is kept; U is then solved from all data. `scale` and `smoothing` are
        those of `ExplicitClassifier`.
        """
        X = coerced(X.to(self.U.device, torch.float64))
        Y = one_hot(targets.to(self.U.device), self.U.shape[1]).double()
        held = torch.arange(len(X), device=X.device) % HELD_OUT == HELD_OUT - 1
        best: tuple[float, float, Tensor] = (float("inf"), 1.0, self.W)
        for W, U in self.rounds(X[~held], Y[~held], rounds, smoothing):
            scores = self.hidden(X[held], similarities(X[held]), W) @ U
            factor = fit_scale(scores, Y[held]) if scale == "fitted" else as_number(scale)
            loss = float(cross_entropy(factor * scores, Y[held]))
            best = min(best, (loss, factor, W), key=itemgetter(0))
        loss, factor, W = best
        H = self.hidden(X, similarities(X), W)
        self.W.copy_(W)
        self.U.copy_(factor * solve(co_occurrence(H, Y), len(H), None, smoothing))
        return loss

    def rounds(self, X: Tensor, Y: Tensor, count: int, smoothing: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each W, the first of them uniform, with the U of Eq. 5 that follows; Eq. 6 makes the next W of both.

        All rounds are run with V and with −V, and, in place of the printed c, with the least shift in which F(Q, V) is
        positive. If c is too small for that, its rounds end.
        """
        Q = similarities(X)
        c = equations.variation_bound(self.slots, Y.shape[1])
        for sign, least in product((1, -1), (False, True)):
            W = torch.ones(self.slots, self.slots, dtype=X.dtype, device=X.device)
            for _ in range(count + 1):
                H = self.hidden(X, Q, W)
                U = solve(co_occurrence(H, Y), len(H), None, smoothing)
                yield W, U
                gradient = sign * (Y - torch.softmax(H @ U, dim=1)) @ U.T  # in H
                V = ((gradient + c).view(len(X), -1, X.shape[2]) * X).sum(2)  # (M, K)
                F = co_occurrence(Q, V)
                F = equations.smallest_shift(F) if least else F
                if F.min() <= 0:
                    break
                W = explicit_solution(F, equations.attention_priming_number(self.slots))


def similarities(X: Tensor) -> Tensor:
    """Return Q_m = X_h Xᵀ, (M, K), with the last vector as the head h."""
    return (X @ X[:, -1, :, None]).squeeze(2)
