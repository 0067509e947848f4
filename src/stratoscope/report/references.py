"""What to cite for a result: the two studies it follows, and the source of each measure in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Reference(NamedTuple):
    """One work, and what in a result calls for it."""

    text: str
    measures: tuple[str, ...]
    """Public names of the measures it defines; empty for works that every comparison follows."""


REFERENCES: tuple[Reference, ...] = (
    Reference(
        "Wu, Belinkov, Sajjad, Durrani, Dalvi, Glass (2020). Similarity Analysis of Contextual Word Representation "
        "Models. ACL.",
        (),
    ),
    Reference(
        "Phang, Liu, Bowman (2021). Fine-Tuned Transformers Show Clusters of Similar Representations Across Layers. "
        "BlackboxNLP.",
        (),
    ),
    Reference(
        "Kornblith, Norouzi, Lee, Hinton (2019). Similarity of Neural Network Representations Revisited. ICML.",
        ("ckasim", "ckasim-debiased", "ckasim-rbf", "ckasim-minibatch", "cca", "linreg"),
    ),
    Reference(
        "Song, Smola, Gretton, Bedo, Borgwardt (2012). Feature Selection via Dependence Maximization. JMLR.",
        ("ckasim-debiased", "ckasim-minibatch"),
    ),
    Reference(
        "Nguyen, Raghu, Kornblith (2021). Do Wide and Deep Networks Learn the Same Things? ICLR.", ("ckasim-minibatch",)
    ),
    Reference(
        "Raghu, Gilmer, Yosinski, Sohl-Dickstein (2017). SVCCA: Singular Vector Canonical Correlation Analysis for "
        "Deep Learning Dynamics and Interpretability. NeurIPS.",
        ("svsim",),
    ),
    Reference(
        "Morcos, Raghu, Bengio (2018). Insights on Representational Similarity in Neural Networks with Canonical "
        "Correlation. NeurIPS.",
        ("pwsim",),
    ),
    Reference(
        "Bau, Belinkov, Sajjad, Durrani, Dalvi, Glass (2019). Identifying and Controlling Important Neurons in Neural "
        "Machine Translation. ICLR.",
        ("neuronsim", "mixedsim"),
    ),
    Reference(
        "Schönemann (1966). A Generalized Solution of the Orthogonal Procrustes Problem. Psychometrika.",
        ("procrustes",),
    ),
    Reference(
        "Kriegeskorte, Mur, Bandettini (2008). Representational Similarity Analysis: Connecting the Branches of "
        "Systems Neuroscience. Frontiers in Systems Neuroscience.",
        ("rsa",),
    ),
)


def to_cite(measures: Iterable[str]) -> list[str]:
    """The works behind these measures; `@fraction` does not change what a measure is."""
    plain = {measure.partition("@")[0] for measure in measures}
    return [r.text for r in REFERENCES if not r.measures or plain.intersection(r.measures)]
