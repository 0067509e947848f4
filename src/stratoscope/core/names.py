"""Names that options take: known before anything heavy is imported, so that a misspelt one is refused at once."""

from __future__ import annotations

ALL = "all"
MEASURES = (
    "neuronsim",
    "mixedsim",
    "svsim",
    "pwsim",
    "ckasim",
    "ckasim-debiased",
    "ckasim-rbf",
    "ckasim-minibatch",
    "cca",
    "linreg",
    "procrustes",
    "rsa",
    "knn",
    "knn-jaccard",
    "mixedsim-heldout",
)
"""Of layers, in the order of `measures.table`."""
ALIASES = {"cka": "ckasim", "svcca": "svsim", "pwcca": "pwsim"}
"""Names that other packages use."""
UNITS = ("word", "cls", "mean", "token")
"""What a row can be."""
