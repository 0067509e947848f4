"""One run: refused before any work, resumed after a kill, recognised when finished, saved whole, drawn, tidied up."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from safetensors.torch import load_file
from torch import Tensor

from stratoscope.core.errors import AnotherResultError, DamagedResultError, ForeignResultError, StratoscopeError
from stratoscope.core.files import ANOTHER, digest, write_text
from stratoscope.core.progress import Progress, Silent, inside
from stratoscope.core.provenance import code_key, versions
from stratoscope.core.record import to_plain
from stratoscope.engine.base import Engine, Resources
from stratoscope.engine.local import ANY, InProcess
from stratoscope.runs.folder import PAGE, PROTOCOL, WAIT, RunFolder
from stratoscope.runs.kinds import kind_in, kind_named
from stratoscope.runs.protocol import write_protocol

Tensors = Mapping[str, Tensor]
Item = dict[str, Any]
Work = Callable[[Any, Item], Tensors]
"""A top-level function of what all items share and of one item, plain data; gives back what it makes."""
Draw = Callable[[Path, Any], Any]
"""Writes figures and page of a finished result into its folder, which is still held."""
R = TypeVar("R")

NEW = "new"
"""Among the parts while a new result has no `run.yaml` and page yet: those that are there are of the one before it."""


@dataclass(frozen=True)
class Request:
    """What a run is asked for, as plain data; its digest is its identity. The code that answers is no part of it."""

    kind: str
    """Name of a row of `runs.kinds.KINDS`."""
    inputs: Mapping[str, Any]
    """Fingerprints of models, rows and tasks."""
    options: Mapping[str, Any]
    """Options that the answer depends on."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """All options as they were given; no part of the identity, but what a difference is explained by."""

    @property
    def plain(self) -> dict[str, Any]:
        return {"inputs": to_plain(self.inputs), "options": to_plain(self.options)}

    @property
    def digest(self) -> str:
        return digest(self.plain, length=64)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """What of another request, as a result records it, is not as in this one: `seed (0, now 1)`."""
        differences: dict[str, str] = {}
        for group, mine in {"options": self.plain["options"], "said": to_plain(self.said), **self.plain}.items():
            theirs = other.get(group, {})
            if group == "inputs" and differences:
                break
            for name in dict.fromkeys((*mine, *theirs)):
                if mine.get(name) != theirs.get(name):
                    differences.setdefault(name, _difference(name, theirs.get(name), mine.get(name)))
        return list(differences.values())


def _difference(name: str, *values: Any) -> str:
    """What differs; with both values, where they are short enough for a sentence."""
    texts = ["none" if v is None else ", ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values]
    short = not any(isinstance(v, dict) for v in values) and all(len(text) <= 40 for text in texts)
    return f"{name} ({texts[0]}, now {texts[1]})" if short else name


@dataclass(frozen=True)
class Shard:
    """One of several processes that make the parts of one run.

    Each begins with its own share and goes on with parts that nobody else is making, so that any of them, alone if it
    must, brings the run to its end: shards may start, fail and be run again in any order.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `3/8`: the third of eight."""
        match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", str(text))
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise StratoscopeError(f"expected --shard as i/n with i from 1 to n, such as 3/8, got '{text}'")
        return cls(int(match[1]), int(match[2]))

    def order(self, items: Sequence[int]) -> list[int]:
        """Its own items, then those of others, the last first: there nobody is at work yet."""
        own = [k for k in items if k % self.of == self.number - 1]
        return own + [k for k in reversed(items) if k % self.of != self.number - 1]


class _FinishedError(Exception):
    """Another shard has written the result."""

    def __init__(self, result: Any) -> None:
        self.result = result


@dataclass(frozen=True)
class Run:
    """A run under way: the only ways to keep a part. Without a folder everything stays in memory."""

    folder: RunFolder | None = None
    engine: Engine = field(default_factory=InProcess)
    progress: Progress = field(default_factory=Silent)
    memory: float = 4e9
    """Bytes that may be worked in, over all workers; no number and no name of a part depends on it."""
    shard: Shard | None = None
    finish: Callable[[], None] = lambda: None
    """Called before anything but a part is written to the folder: from there on no other shard gets."""

    def file(self, name: str, key: Any, make: Callable[[], Tensors]) -> Path:
        """The file of a part made from `key` (plain data), made now if it is missing or damaged."""
        if self.folder is None:
            raise ValueError("a run in memory has no files")
        part, folder = part_name(name, key), self.folder
        while not folder.has(part):
            if not folder.claim(part):
                time.sleep(WAIT)
            elif not folder.has(part):
                folder.save(part, make())
            folder.release(part)
        return folder.part(part).resolve()

    def part(self, name: str, key: Any, make: Callable[[], Tensors]) -> Tensors:
        """The tensors of a part, made now if it is missing or damaged."""
        return make() if self.folder is None else load_file(self.file(name, key, make))

    def map(
        self,
        work: Work,
        items: Sequence[Item],
        *,
        name: str,
        key: Any,
        label: str,
        shared: Any = None,
        weights: Sequence[int] | None = None,
        resources: Resources = ANY,
        given: Callable[[Item], Item] = lambda item: item,
    ) -> list[Tensors]:
        """Results of all items in order, those finished earlier read instead of computed.

        A part is named after `name`, `key` (what `shared` was made from) and the item's own content: never after
        workers or memory, so that a run resumed with others reuses what is finished. `given` makes of an item what
        its worker gets, when it gets it: rows that are too many to be handed out all at once.
        """
        how: dict[str, Any] = {"name": name, "key": key, "label": label, "shared": shared, "weights": weights}
        kept = self.map_files(work, items, **how, resources=resources, given=given, hold=True)
        return [load_file(k) if isinstance(k, Path) else k for k in kept]

    def map_files(
        self,
        work: Work,
        items: Sequence[Item],
        *,
        name: str,
        key: Any,
        label: str,
        shared: Any = None,
        weights: Sequence[int] | None = None,
        resources: Resources = ANY,
        given: Callable[[Item], Item] = lambda item: item,
        hold: bool = False,
    ) -> list[Path | Tensors]:
        """As `map`, for what is too large to hold: the file of each result, or the result where there is no folder."""
        weights = weights or [1] * len(items)
        folder, kept = self.folder, dict[int, Path | Tensors]()
        parts = [part_name(name, [key, item]) if folder else "" for item in items]
        reported, waited, done = 0, 0, list[int]()
        with ExitStack() as stack:

            @cache
            def begun() -> Callable[[int], None]:
                """The step, shown once there is anything to do."""
                step = stack.enter_context((self.progress if label else Silent()).step(label, sum(weights)))
                for n in done:
                    step(n)
                return step

            def advance(n: int) -> None:
                if begun.cache_info().currsize:
                    begun()(n)
                else:
                    done.append(n)

            def keep(k: int, result: Path | Tensors) -> None:
                nonlocal reported
                kept[k] = result
                advance(weights[k] - reported)
                reported = 0

            def report(n: int) -> None:
                nonlocal reported
                reported += n
                advance(n)

            def claimed(missing: Sequence[int], taken: list[int]) -> Iterator[Item]:
                for k in missing if self.shard is None else self.shard.order(missing):
                    if folder is not None and not folder.claim(parts[k]):
                        continue
                    if folder is not None and folder.has(parts[k]):
                        keep(k, folder.part(parts[k]).resolve())
                        folder.release(parts[k])
                        continue
                    taken.append(k)
                    begun()
                    yield given(items[k])

            missing = list(range(len(items)))
            while missing:
                taken: list[int] = []
                with inside(report):
                    for position, result in self.engine.map(work, claimed(missing, taken), shared, resources):
                        k = taken[position]
                        saved = None if folder is None else folder.save(parts[k], result)
                        keep(k, result if hold or saved is None else saved.resolve())
                        del result  # before the next one is made
                        if folder is not None:
                            folder.release(parts[k])
                before, missing = len(missing), [k for k in missing if k not in kept]
                if missing and before == len(missing):
                    begun()
                    if not waited:
                        self.progress.note(f"{label}: waiting for {len(missing)} parts that other shards are making")
                    waited += 1
                    time.sleep(WAIT)
        return [kept[k] for k in range(len(items))]


def part_prefix(name: str) -> str:
    """How the names of parts begin that this code made."""
    return f"{name}-{code_key()[:12]}-"


def part_name(name: str, key: Any) -> str:
    """File of a part: what it is, which code made it, and from what."""
    return f"{part_prefix(name)}{digest(to_plain(key), length=24)}.safetensors"


def run(
    request: Request,
    out: str | Path | None,
    compute: Callable[[Run], R],
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
    keep: Callable[[str], bool] = lambda part: False,
    draw: Draw | None = None,
    protocol: Mapping[str, Any] | None = None,
    engine: Callable[[], Engine] = InProcess,
    memory: float | None = None,
    whole: Callable[[Path, Any], bool] = lambda folder, result: True,
    alone: bool = False,
    shard: Shard | None = None,
) -> R:
    """The result of a request: the one its folder holds, or a new one, saved and drawn; without `out`, in memory only.

    Parts are dropped when the result is saved, and never before; `keep` says which of them stay. `protocol` is what
    `run.yaml` says: the command and its arguments, as the user would type them again. For a result that is more than
    its record, as a checkpoint is, `whole` says whether the rest is undamaged, and `alone` asks for a folder of its
    own. A `shard` shares the folder with others; the first one that has all parts writes the result, and the last one
    drops the parts.
    """
    progress = progress or Silent()
    if shard is not None and out is None:
        raise StratoscopeError("a shard needs a folder that all shards share; give --out")
    kind = kind_named(request.kind)
    result: R | None
    with ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory(prefix="stratoscope-")) if out is None else out
        opening = RunFolder.open(path, makes=kind.file, alone=alone, shared=shard is not None)
        folder = stack.enter_context(opening)
        stack.enter_context(_while_there(folder))

        def held() -> R | None:
            result_there: R | None = finished(folder.path, request, overwrite=overwrite, progress=progress, whole=whole)
            return result_there

        @cache
        def finish() -> None:
            stack.enter_context(folder.finishing())
            if shard is not None and (there := held()) is not None:
                raise _FinishedError(there)

        with folder.finishing():
            result = held()
        try:
            if result is None:
                workers = stack.enter_context(closing(engine()))
                workers.attach(folder.part(""), progress)
                memory = memory or (workers.memory or physical_memory()) / 2
                result = compute(Run(folder, workers, progress, memory, shard, finish))
                finish()
                folder.check()
                write_text(folder.part(NEW), "")
                result = save(result, folder.path, request)
            else:
                stack.enter_context(folder.finishing())
        except _FinishedError as e:
            result = cast(R, e.result)
        if shard is None:
            folder.drop_parts(lambda part: part == NEW or keep(part))
        if out is None:
            return result
        new = folder.part(NEW).exists()
        if protocol is not None and (new or not (folder.path / PROTOCOL).is_file()):
            write_protocol(folder.path, protocol)
        if draw is not None and (new or not (folder.path / PAGE).is_file()):
            draw(folder.path, result)
        folder.check()
        if folder.is_last():
            folder.drop_parts(lambda part: part != NEW and keep(part))
        else:
            folder.part(NEW).unlink(missing_ok=True)
    return result


@contextmanager
def _while_there(folder: RunFolder) -> Iterator[None]:
    """Whatever goes wrong once the folder is removed, that is the reason; files made in it since are no result."""
    try:
        yield
    except StratoscopeError:
        raise
    except Exception:
        folder.check()
        raise


def save(result: R, folder: Path, request: Request) -> R:
    """Save a result with the request it answers and the code that made it."""
    asked = {**request.plain, "said": to_plain(request.said)}
    made_by = {"request": asked, "digest": request.digest, "code": code_key(), "versions": versions()}
    saved: Any = result
    saved = replace(saved, provenance={**saved.provenance, **made_by})
    saved.save(folder)
    return cast(R, saved)


def finished(
    folder: Path, request: Request, *, overwrite: bool, progress: Progress, whole: Callable[[Path, Any], bool]
) -> Any:
    """The folder's result if it answers this very request; another one is not replaced unasked.

    One that other code made is still an answer: it is reused, and that is reported, unless asked to make it again. A
    damaged one is made again.
    """
    kind = kind_named(request.kind)
    if not (folder / kind.file).is_file():
        return None
    try:
        held = kind.load_class().load(folder)
    except ForeignResultError as e:
        if overwrite:
            return None
        raise StratoscopeError(e.fact, *e.ways, "give --overwrite") from e
    except DamagedResultError:
        progress.note(f"{folder / kind.file} is damaged and is made again")
        return None
    if held.provenance.get("digest") != request.digest:
        if overwrite:
            return None
        differs = request.differences(held.provenance.get("request", {}))
        what = f": {', '.join(differs[:4])}" if differs else ""
        refused = AnotherResultError(f"{folder} holds another result{what}", ANOTHER, "give --overwrite")
        refused.digest = request.digest
        raise refused
    if not whole(folder, held):
        progress.note(f"{folder} is damaged and is made again")
        return None
    if held.provenance.get("code") == code_key():
        progress.note(f"{folder} already holds this result; nothing to do")
        return held
    if overwrite:
        return None
    before, now = held.provenance.get("versions", {}), versions()
    other = ", ".join(f"{name} {v}" for name, v in before.items() if now.get(name, v) != v)
    made = other or "other source files of stratoscope"
    progress.note(f"{folder} already holds this result, made with {made}; give --overwrite to make it again")
    return held


def holds_another(folder: Path, digest: str) -> bool:
    """Whether a folder holds a result that does not answer the request with this digest."""
    kind = kind_in(folder)
    if kind is None:
        return False
    try:
        return bool(kind.load_class().load(folder).provenance.get("digest") != digest)
    except StratoscopeError:
        return True


def physical_memory() -> float:
    """Bytes of memory this machine has; its size rather than what is free, so that a run repeats itself."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
