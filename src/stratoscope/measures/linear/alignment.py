"""ckasim, its debiased form, and procrustes: overlap of the cross-covariance as it is, nothing whitened."""

from __future__ import annotations

from stratoscope.measures import chance
from stratoscope.measures.measure import ORTHOGONAL, Measure, Scores
from stratoscope.measures.pair import Pair
from stratoscope.statistics.layer import LayerBasis


def _ckasim(pair: Pair, top: float) -> Scores:
    """‖XᵀY‖²_F / (‖XᵀX‖_F ‖YᵀY‖_F) (Kornblith et al. 2019, eq. 4 with a linear kernel)."""
    return Scores.symmetric(pair.overlap / (pair.x.spread * pair.y.spread))


def _debiased(pair: Pair, top: float) -> Scores:
    """CKA from the unbiased HSIC of Song et al. 2012 (eq. 5), streamed; may be below 0, is about 0 for noise.

    Only of independent rows: unrelated layers that both see the words of a sentence score 0.1 (`permuted`).
    """
    (xx, xy), (_, yy) = pair.norms.tolist()
    own = _unbiased_self(pair.x, xx) * _unbiased_self(pair.y, yy)
    hsic = unbiased_hsic(pair.overlap, xy, pair.x.scale, pair.y.scale, pair.x.n)
    return Scores.symmetric(hsic / own**0.5 if own > 0 else 0.0)


def unbiased_hsic(product: float, norms: float, x_scale: float, y_scale: float, n: int) -> float:
    """HSIC₁ · (n-3)/n of centred rows, whose kernel rows sum to zero.

    With K̃ the kernel without its diagonal: tr K̃L̃ + 1ᵀK̃1 1ᵀL̃1/((n-1)(n-2)) - 2·1ᵀK̃L̃1/(n-2); centring makes
    K̃1 = -diag K, so everything follows from ‖XᵀY‖² and the rows' squared norms.
    """
    traces = x_scale * y_scale * n**2
    return (product * n**2 - norms + traces / ((n - 1) * (n - 2)) - 2 * norms / (n - 2)) / n**2


def _unbiased_self(basis: LayerBasis, norms: float) -> float:
    return unbiased_hsic(basis.spread**2, norms, basis.scale, basis.scale, basis.n)


def _procrustes(pair: Pair, top: float) -> Scores:
    """‖XᵀY‖_* / (‖X‖_F ‖Y‖_F): 1 - half the squared orthogonal Procrustes distance of layers of unit norm."""
    return Scores.symmetric(pair.nuclear)


CKASIM = Measure(
    name="ckasim",
    summary="centred kernel alignment with a linear kernel",
    reference="Wu et al. 2020, A.3; Kornblith et al. 2019",
    symmetric=True,
    bounds=(0, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_ckasim,
    chance=chance.ckasim,
)

CKASIM_DEBIASED = Measure(
    name="ckasim-debiased",
    summary="linear CKA without the bias of few rows: about 0 for unrelated layers of independent rows",
    reference="Song et al. 2012; Kornblith et al. 2019",
    symmetric=True,
    bounds=(-1, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_debiased,
)

PROCRUSTES = Measure(
    name="procrustes",
    summary="overlap after the best rotation of one layer onto the other",
    reference="Schönemann 1966; Williams et al. 2021",
    symmetric=True,
    bounds=(0, 1),
    invariant_x=ORTHOGONAL,
    invariant_y=ORTHOGONAL,
    compare=_procrustes,
    chance=chance.procrustes,
)
