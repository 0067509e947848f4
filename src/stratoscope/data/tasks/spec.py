"""What a published task is: where its rows lie, what they hold, and how predictions are judged."""

from __future__ import annotations

from dataclasses import dataclass

from stratoscope.data.tasks.data import CHOICE, PAIR, SINGLE, SPLITS


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what."""

    text: tuple[str, ...]
    """Joined by a blank when there are several."""
    label: str = "label"
    pair: str | None = None
    choices: tuple[str, ...] = ()
    """Multiple choice: one column per choice, or a single column of lists."""


@dataclass(frozen=True)
class Folder:
    """Files of a folder laid out as the task's authors publish it."""

    name: str
    """Name of the folder in the published archive."""
    train: tuple[str, ...] = ("train.tsv",)
    """File names or patterns, the preferred first."""
    validation: tuple[str, ...] = ("dev.tsv",)
    columns: Columns | None = None
    """Where they differ from those on the hub."""
    header: str | None = None
    """Names of the columns of files without a header."""


@dataclass(frozen=True)
class Task:
    """A published task: where its rows are, what they hold, and how predictions are judged."""

    name: str
    summary: str
    columns: Columns
    labels: tuple[str, ...] | None
    """Class names in the order of their indices; positions of the choices; None = regression."""
    folder: Folder
    reference: str
    metric: str = "accuracy"
    hub: str = ""
    """Data set on the hub, `name` or `name:config`; by default GLUE's of the task's name (Wang et al. 2018)."""
    splits: tuple[str, str] = SPLITS
    """Names of the training and validation split on the hub."""
    codes: tuple[str, ...] | None = None
    """What files write instead of the class names; None = 0, 1, ..."""
    revision: str | None = None
    """Branch of the hub to read when the user names none."""
    note: str = ""
    """What a reader of its numbers should know."""

    @property
    def regression(self) -> bool:
        return self.labels is None

    @property
    def format(self) -> str:
        """One of `FORMATS`."""
        return CHOICE if self.columns.choices else SINGLE if self.columns.pair is None else PAIR
