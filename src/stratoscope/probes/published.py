"""The published schedule: 10 epochs of Adam on shuffled batches of 512, all penalties side by side.

Durrani et al. 2021, section 3. It stops far from the optimum of its objective and under-trains layers whose
features are small, which confounds comparisons between layers; `solve` does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stratoscope.probes.features import Features
from stratoscope.probes.objective import Penalties, softmax_errors_

BUFFER_CHUNKS = 32
"""Chunks of the store (65,536 words) that are shuffled together: more words are shuffled in such pieces, drawn at
random."""
BUFFER_BYTES = 1e8
"""Memory that they may take. Of more, each part of the batches is read again from all of them: the same batches."""


@dataclass(frozen=True)
class Schedule:
    """How a probe is trained."""

    epochs: int = 10
    batch: int = 512
    rate: float = 1e-3


PUBLISHED = Schedule()


@dataclass(frozen=True)
class Trained:
    """Probes of all penalties after a schedule."""

    weight: Tensor
    bias: Tensor
    bits: Tensor
    """(P,) what the tags of the first epoch cost, each batch coded before it is learnt from (a prequential code)."""


def train(features: Features, penalties: Penalties, *, seed: int, schedule: Schedule = PUBLISHED) -> Trained:
    """Adam on F as it stands, the l1 term by its sign; the same start and batches for every penalty."""
    d, classes, pairs = features.width, features.classes, len(penalties)
    generator = torch.Generator().manual_seed(seed)
    bound = d**-0.5  # as torch's Linear
    weight, bias = (
        torch.empty(shape).uniform_(-bound, bound, generator=generator)[..., None].expand(*shape, pairs).clone()
        for shape in ((d, classes), (classes,))
    )
    parameters = [torch.nn.Parameter(p) for p in (weight, bias)]
    adam = torch.optim.Adam(parameters, lr=schedule.rate, fused=True)
    flat, bits = weight.view(d, -1), torch.zeros(pairs, dtype=torch.float64)
    gradient, of_bias = torch.empty_like(flat), torch.empty_like(bias)
    parameters[0].grad, parameters[1].grad = gradient.view_as(weight), of_bias
    l1, l2 = (v.expand(classes, pairs).reshape(1, -1).clone() for v in (penalties.l1, 2 * penalties.l2))
    with torch.no_grad():
        for epoch in range(schedule.epochs):
            for x, y in shuffled(features, schedule.batch, generator):
                scores = torch.addmm(bias.view(-1, 1), flat.T, x.T).view(classes, pairs, -1)
                errors, loss = softmax_errors_(scores, y)
                if epoch == 0:
                    bits += loss / torch.log(torch.tensor(2.0))
                errors /= len(x)
                torch.sum(errors, 2, out=of_bias)
                torch.mul(flat, l2, out=gradient)
                gradient.addcmul_(torch.sign(flat), l1)
                gradient.addmm_(x.T, errors.view(-1, len(x)).T)
                adam.step()
    return Trained(weight.detach(), bias.detach(), bits)


def shuffled(features: Features, batch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Every row once, in random batches, each to be used before the next is asked for: they share their memory.

    It is taken once: blocks of other sizes, freed between those of the training, would leave holes that glibc keeps.
    """
    pieces = list(features.pieces())
    sizes = sorted((high - low for _, low, high in pieces), reverse=True)
    together = max(1, int(BUFFER_BYTES / (4 * features.width * batch))) * batch
    buffer = torch.empty(min(together, sum(sizes[:BUFFER_CHUNKS])), features.width)
    order = torch.randperm(len(pieces), generator=generator).tolist()
    for first in range(0, len(order), BUFFER_CHUNKS):
        some = [pieces[k] for k in order[first : first + BUFFER_CHUNKS]]
        permuted = torch.randperm(sum(high - low for _, low, high in some), generator=generator)
        for part in torch.split(permuted, together):
            x = buffer[: len(part)]
            tags = _gather_(x, features, some, part)
            yield from zip(torch.split(x, batch), torch.split(tags, batch), strict=True)


def _gather_(x: Tensor, features: Features, pieces: Sequence[tuple[int, int, int]], which: Tensor) -> Tensor:
    """Write some rows of these pieces, counted through all of them, in the order asked for; their tags."""
    y = torch.empty(len(which), dtype=torch.int64)
    order, start = which.argsort(), 0
    ends = which[order]
    for piece in pieces:
        stop = start + piece[2] - piece[1]
        a, b = torch.searchsorted(ends, torch.tensor([start, stop])).tolist()
        if b > a:
            own, tags = features.piece(*piece)
            x[order[a:b]], y[order[a:b]] = own[ends[a:b] - start], tags[ends[a:b] - start]
        start = stop
    return y
