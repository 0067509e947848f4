"""What a decoder's cut is chosen from: cuts measured on few texts, patches fitted on others, proposals of papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratoscope.core.errors import StratoscopeError
from stratoscope.core.progress import Progress, advanced
from stratoscope.core.value import MISSING, Value
from stratoscope.data.corpus import Corpus
from stratoscope.models.open.held import Held
from stratoscope.models.open.loading import CAUSAL, ModelSpec, OpenedModel, Survey, open_model
from stratoscope.models.read.perplexity import LEVEL, Predicted, check_causal
from stratoscope.models.read.stream import Moves, moves
from stratoscope.models.surgery.patch import RIDGES, can_patch, down_weight, fit_patches
from stratoscope.models.surgery.spans import Span
from stratoscope.models.text.encoder import Encoded, IntArray
from stratoscope.models.text.examples import Floats, text_length
from stratoscope.results.cutting.decoder import Tried
from stratoscope.runs.run import Item, Run, Tensors
from stratoscope.studies.decoder.options import ANY, CutDecoderOptions
from stratoscope.studies.perplexity.spans import Cut, predicted, ratio, skipped

CHOOSE, FIT = 32, 200
"""Most texts on which the cut is chosen and its patches are fitted; what is left confirms it."""
FEWEST = 10
FITTED_TOGETHER = 8
"""Gaps whose sums are held at once while one pass fits their patches."""

Removed = tuple[int, ...]
Patch = tuple[tuple[Span, int], ...]
"""For each gap that is closed, which of `RIDGES` was taken."""


@dataclass(frozen=True)
class Shares:
    """Texts by what they are for; no text is in two."""

    choose: IntArray
    fit: IntArray
    confirm: IntArray


@dataclass(frozen=True)
class Work:
    """The whole model and the texts it is held against."""

    spec: ModelSpec
    surveyed: Survey
    corpus: Corpus
    options: CutDecoderOptions
    run: Run

    @property
    def blocks(self) -> int:
        return self.surveyed.layers - 1

    @property
    def length(self) -> int:
        return text_length(self.surveyed.encoder, self.options.length)

    @property
    def key(self) -> list[Any]:
        """What parts are made from."""
        return [
            self.surveyed.fingerprint,
            self.surveyed.dtype,
            self.surveyed.device,
            self.corpus.fingerprint,
            self.length,
        ]

    @cached_property
    def held(self) -> Held:
        """The model with its head, tried for looking ahead wherever it is opened."""
        opening = partial(_open, self.spec, self.surveyed, self.encoded)
        return Held(opening, self.surveyed, CAUSAL, self.run.progress)

    @property
    def model(self) -> OpenedModel:
        return self.held()

    @cached_property
    def encoded(self) -> Encoded:
        return self.surveyed.encoder.encode(self.corpus.sentences, truncate=self.length)

    @cached_property
    def shares(self) -> Shares:
        """A fifth of the texts, at most `CHOOSE`, to choose on, two fifths, at most `FIT`, to fit on, the rest."""
        texts = np.flatnonzero(self.encoded.lengths > 1)
        n = len(texts)
        if n < FEWEST:
            raise StratoscopeError(
                f"expected at least {FEWEST} texts of two tokens or more in '{self.corpus.name}', got {n}: some choose"
                " the cut, some fit it and the others confirm it; give more texts"
            )
        drawn = np.random.default_rng(self.options.seed).permutation(texts)
        choose, fit = min(CHOOSE, n // 5), min(FIT, 2 * n // 5)
        parts = (drawn[:choose], drawn[choose : choose + fit], drawn[choose + fit :])
        return Shares(*(np.sort(part) for part in parts))

    def tokens(self, texts: IntArray) -> Floats:
        """Tokens that are predicted of each text."""
        return (self.encoded.lengths[texts] - 1).astype(float)

    def kept(self, removed: Iterable[int]) -> tuple[int, ...]:
        gone = set(removed)
        return tuple(k for k in range(1, self.blocks + 1) if k not in gone)

    def cut(self, removed: Removed, patch: Patch = ()) -> Cut:
        """The model without these blocks, its gaps closed as `patch` says."""
        weights = {down_weight(self.model.module, s[0] - 1)[0]: self.patches[s][r] for s, r in patch}
        kept = self.kept(removed) if removed else None
        return Cut(self.held, self.encoded, self.options.batch_tokens, kept, weights)

    def said(self, texts: IntArray, removed: Removed = (), patch: Patch = (), *, label: str = "") -> Predicted:
        """What the model, whole or cut, says of these texts."""
        fitted = self.shares.fit.tolist() if patch else []
        key = [*self.key, removed, patch, fitted]
        return predicted(self.run, self.cut(removed, patch), texts, key=key, label=label)

    def spans(self, removed: Removed = (), *, longest: int) -> dict[Span, Floats]:
        """Scores of every span skipped on the texts for the choice, of a model without some blocks already."""
        key, label = [*self.key, removed], f"skipping blocks of {self.spec.label}"
        return skipped(self.run, self.cut(removed), self.shares.choose, longest=longest, key=key, label=label)

    @cached_property
    def patches(self) -> dict[Span, tuple[Tensor, ...]]:
        """Filled by `fit`."""
        return {}

    def fit(self, spans: Sequence[Span]) -> None:
        """Fit the patches of these gaps, several in one pass."""
        todo = [span for span in dict.fromkeys(spans) if can_patch(self.model.module, span)]
        groups = [todo[start : start + FITTED_TOGETHER] for start in range(0, len(todo), FITTED_TOGETHER)]
        texts = self.shares.fit.tolist()
        parts = self.run.map(
            _fitted,
            [{"spans": group, "texts": texts} for group in groups],
            name="patch",
            key=self.key,
            label=f"refitting blocks of {self.spec.label}",
            shared=self.cut(()),
            weights=[len(texts)] * len(groups),
            resources=self.held.resources,
        )
        for group, made in zip(groups, parts, strict=True):
            for k, span in enumerate(group):
                self.patches[span] = tuple(made[f"{k}-{r}"] for r in range(len(RIDGES)))

    def moves(self) -> Moves:
        """How far blocks move the stream, on the texts for the choice: one item, for sums of parts would round."""
        item, how = {"texts": self.shares.choose.tolist()}, self.held.resources
        (made,) = self.run.map(_moved, [item], name="moves", key=self.key, label="", shared=self.cut(()), resources=how)
        return Moves(made["influence"].numpy(), made["angular"].numpy())


def _open(spec: ModelSpec, surveyed: Survey, encoded: Encoded, *, progress: Progress) -> OpenedModel:
    model = open_model(spec, CAUSAL, surveyed=surveyed, progress=progress)
    check_causal(model, encoded, int(encoded.lengths.argmax()))
    return model


def _moved(cut: Cut, item: Item) -> Tensors:
    moved = moves(cut.model(), cut.encoded, np.array(item["texts"]), batch_tokens=cut.batch_tokens)
    return {"influence": torch.from_numpy(moved.influence), "angular": torch.from_numpy(moved.angular)}


def _fitted(cut: Cut, item: Item) -> Tensors:
    """New weights for some gaps, from one pass."""
    texts, spans = np.array(item["texts"]), [tuple(span) for span in item["spans"]]
    tokens = cut.batch_tokens
    patches = fit_patches(cut.model(), cut.encoded, texts, spans, batch_tokens=tokens, advance=advanced)
    return {f"{k}-{r}": w.contiguous() for k, made in enumerate(patches) for r, w in enumerate(made)}


@dataclass(frozen=True)
class Chosen:
    """Everything that was measured on the texts for the choice."""

    tried: tuple[Tried, ...]
    """The best cut of one block, of two, and so on."""
    patches: Mapping[Removed, Patch]
    """The patch that each of them keeps."""
    spans: Mapping[Span, Floats]
    whole: Predicted


def gaps(removed: Sequence[int]) -> list[Span]:
    """The spans that removed blocks (increasing) are made of."""
    starts = [removed[0], *(b for a, b in pairwise(removed) if b > a + 1)]
    ends = [*(a for a, b in pairwise(removed) if b > a + 1), removed[-1]]
    return list(zip(starts, ends, strict=True))


def choose(work: Work) -> Chosen:
    """The best cut of every number of blocks, with the patch that helps it most, beside what others would choose."""
    rows, most = work.shares.choose, min(work.options.span_length, work.blocks - work.options.keep)
    tokens = work.tokens(rows)
    whole = work.said(rows, label=f"reading with {work.spec.label}")
    if not np.isfinite(whole.losses).all():
        raise StratoscopeError(f"'{work.spec.label}' gives a probability that is not finite", "check its weights")
    spans = work.spans(longest=1 if work.options.blocks == ANY else most)
    removed = list(_greedy(work, spans, most) if work.options.blocks == ANY else _best_spans(spans, most))
    if work.options.patch:
        work.fit([gap for blocks in removed for gap in gaps(blocks)])
    moved, tried, patches = work.moves(), list[Tried](), dict[Removed, Patch]()

    def said(blocks: Removed, patch: Patch = ()) -> Floats:
        """(texts, 2): -log p, and tokens of which the whole model says the same first."""
        if not patch and (blocks[0], blocks[-1]) in spans and len(gaps(blocks)) == 1:
            return spans[blocks[0], blocks[-1]]
        tried = work.said(rows, blocks, patch)
        return np.column_stack([tried.losses, tried.agreement(whole)])

    def over(scores: Floats) -> Value:
        return ratio(scores[:, 0], whole.losses, tokens, level=LEVEL)

    with work.run.progress.step(f"judging cuts of {work.spec.label}", len(removed)) as advance:
        for blocks in removed:
            closed = [gap for gap in gaps(blocks) if gap in work.patches]
            ways = [tuple((gap, r) for gap in closed) for r in range(len(RIDGES))] if closed else []
            plain, made = said(blocks), {way: said(blocks, way) for way in ways}
            best = min(made, key=lambda way: over(made[way]).value, default=())
            helps = bool(made) and over(made[best]).value < over(plain).value
            patches[blocks] = best if helps else ()
            near, weak = moved.nearest_span(len(blocks)), moved.least_influential(len(blocks))
            tried.append(
                Tried(
                    removed=blocks,
                    ratio=over(plain),
                    patched=over(made[best]) if made else MISSING,
                    patch=helps,
                    agreement=float((made[best] if helps else plain)[:, 1].sum() / tokens.sum()),
                    angular=near,
                    angular_ratio=over(said(near)),
                    influence=weak,
                    influence_ratio=over(said(weak)),
                )
            )
            advance(1)
    return Chosen(tuple(tried), patches, spans, whole)


def _best_spans(spans: Mapping[Span, Floats], most: int) -> Iterator[Removed]:
    """Of every number of blocks the span that costs least."""
    for length in range(1, most + 1):
        first, last = min((s for s in spans if s[1] - s[0] + 1 == length), key=lambda s: float(_total(spans[s][:, 0])))
        yield tuple(range(first, last + 1))


def _greedy(work: Work, singles: Mapping[Span, Floats], most: int) -> Iterator[Removed]:
    """One block after the other, each the one that costs least of those that are left."""
    removed: Removed = ()
    for _ in range(most):
        scores = singles if not removed else work.spans(removed, longest=1)
        k = min(scores, key=lambda s: float(_total(scores[s][:, 0])))[0]
        removed = tuple(sorted((*removed, work.kept(removed)[k - 1])))
        yield removed


def _total(losses: Floats) -> float:
    return float(np.nan_to_num(losses, nan=np.inf).sum())
