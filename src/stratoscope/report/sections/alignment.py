"""Pages of maps between models, of injected states, and of a recovered bijection (Ren et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratoscope.core.value import PERCENTILES, Interval, Value, spread
from stratoscope.report.labels import count, number, printable, shown
from stratoscope.report.outline import Card, Section, Sections
from stratoscope.report.pictures import Bar, Bars, Box, Boxes, Cell, Curves, Heatmap, Level, Line, Sizes, Table
from stratoscope.results.alignment import IDENTITY, SHUFFLED, Alignment, Fit, Injection, Recovery

WHISKERS = (0.05, 0.95)
OVER_ROWS = Interval(0.95, PERCENTILES)
MAPS_SHOWN = 100
"""On the page; their file has them all."""
ERROR = "relative error ‖g(X) − Y‖² / ‖Y − mean‖²"
FLOORS = {SHUFFLED: "ridge on shuffled pairs", IDENTITY: "identity"}
NETWORKS = ("inn", "mlp")
NOTES = {
    "inn": "an invertible network, started from shrunk",
    "mlp": "a network that need not be invertible",
    SHUFFLED: "the floor: what a map learns from pairs in disorder",
    IDENTITY: "rows as they are",
}
TINTS = {
    "inn": 0, "ridge": 1, "linreg": 2, "mlp": 3, "shrunk": 4, "procrustes": 5, "cca": 6, "svcca": 14, "pwcca": 22,
    SHUFFLED: 7, IDENTITY: 15,
}  # fmt: skip
"""The colour of a method in every picture: the maps of canonical correlations share one, and so do baselines, grey."""
CEILING_TINT = 23
GROUPS = {"models": "", "before": ", before fine-tuning"}
JUDGED = (
    "Scores on rows that no map was fitted on, with 95 % intervals over the rows, those of a text together; an "
    "inversion error where there is an inverse."
)
WORKS = ("Ren et al. 2023", "Dinh et al. 2017")


def sections(result: Alignment) -> Sections:
    """What the page of an alignment shows."""
    data = result.data
    return Sections(
        title=f"Alignment of {count(len(result.models), 'model')}",
        cards=tuple(_cards(result)),
        sections=tuple(_parts(result)),
        models=result.models,
        summary=(
            printable(data.get("name") or "text"),
            f"rows: {data.get('unit')}",
            f"{data['train']:,} rows fitted on, {data['test']:,} others judged on",
        ),
        warnings=result.warnings,
        facts={"Data": data, "Provenance": result.provenance},
        works=WORKS,
    )


def _asked(result: Alignment) -> list[str]:
    return [m for m in result.methods if m not in FLOORS]


def _cards(result: Alignment) -> Iterator[Card]:
    """The networks and the best linear map, then what they are to be held against."""
    last = result.layers()[-1]
    linear = [m for m in _asked(result) if m not in NETWORKS and any(result.of(m, layer=last))]
    linear.sort(key=lambda m: _error_at(result, m, last))
    if linear:
        pairs = len(list(result.of(linear[0], layer=last)))
        over = "" if pairs == 1 else f", mean over {count(pairs, 'pair')}"
        others = ", ".join(f"{m} {number(_error_at(result, m, last))}" for m in linear[1:])
        note = f"0 is perfect, 1 the mean{over}" + (f"; the best linear map, then {others}" if others else "")
        yield _card(result, linear[0], linear[0], last, note)
    for method in (*NETWORKS, *FLOORS):
        if any(result.of(method, layer=last)):
            yield _card(result, method, FLOORS.get(method, method), last, NOTES[method])
    if any(result.of(result.judged, "ceiling", last)):
        name = f"{result.judged} from another seed"
        yield _card(result, result.judged, name, last, "the ceiling: no map should do better", group="ceiling")
    inverted = [f.fit.inversion for f in result.of("inn")]
    if inverted:
        yield Card("inn: largest inversion error", f"{max(inverted):.1e}", "inverse(map(x)) against x, relative")


def _error_at(result: Alignment, method: str, layer: int, group: str = "models") -> float:
    return float(np.mean([f.fit.error.value for f in result.of(method, group, layer)]))


def _card(result: Alignment, method: str, name: str, layer: int, note: str, *, group: str = "models") -> Card:
    """Mean over pairs; with its interval where there is one pair."""
    at = list(result.of(method, group, layer))
    value = shown(at[0].fit.error) if len(at) == 1 else number(_error_at(result, method, layer, group))
    return Card(f"{name}: relative error at layer {layer}", value, note)


def _parts(result: Alignment) -> Iterator[Section]:
    yield Section(
        "layers", "Relative error, layer by layer", tuple(_curves(result)), tables=(_means(result), _table(result))
    )
    boxes = tuple(_boxes(result))
    if boxes:
        yield Section("pairs", "Over pairs of models", boxes)
    if result.matrices:
        pictures = tuple(
            Heatmap.of(
                m,
                id=f"cross-{k}",
                title=printable(m.measure.partition(", ")[2]),
                caption="Relative error of ridge from the layer of a row to that of a column, on rows not fitted on;"
                " low is well aligned.",
            )
            for k, m in enumerate(result.matrices)
        )
        yield Section("cross", "All pairs of layers, by ridge", pictures)
    if result.norms and len(result.layers()) > 1:
        lines = tuple(Line.of(c, tint=k) for k, c in enumerate(result.norms))
        caption = "Sum of the singular values of a layer's rows about their mean, over the largest of the model: how"
        picture = Curves(
            id="norms",
            title="Nuclear norm",
            caption=f"{caption} complex its space is. Bands: 95 % intervals over texts.",
            lines=lines,
            y="nuclear norm",
        )
        yield Section("norms", "Complexity of every layer", (picture,))


def _curves(result: Alignment) -> Iterator[Curves]:
    """Mean over pairs; the interval of the rows where there is one pair."""
    for group in _groups(result):
        shown = [(TINTS[m], m, group, FLOORS.get(m, m), m in FLOORS) for m in result.methods]
        if group == "models":
            shown.append((CEILING_TINT, result.judged, "ceiling", f"{result.judged} from another seed", True))
        beside = group == "models" and result.layers("ceiling")
        ceiling = "what a map from another seed of the last model reaches, and " if beside else "and "
        lines = [_line(result, *one) for one in shown]
        yield Curves(
            id=f"errors-{group}",
            title=f"Relative error{GROUPS[group]}",
            caption=f"Maps between the same layers of two models{GROUPS[group]}, judged on rows they were not fitted"
            f" on; mean over pairs of models. Dashed: what needs no map, {ceiling}what a map learns from pairs in"
            " disorder.",
            lines=tuple(line for line in lines if line.layers),
            y=ERROR,
            log=True,
        )


def _groups(result: Alignment) -> list[str]:
    return [group for group in GROUPS if result.layers(group)]


def _line(result: Alignment, tint: int, method: str, group: str, name: str, dashed: bool) -> Line:
    at = {k: [f.fit.error for f in result.of(method, group, k)] for k in result.layers(group)}
    at = {k: errors for k, errors in at.items() if errors}
    values = [float(np.mean([e.value for e in errors])) for errors in at.values()]
    edges = [(e[0].low, e[0].high) if len(e) == 1 else (np.nan, np.nan) for e in at.values()]
    low, high = np.array(edges).reshape(-1, 2).T
    return Line(name, tuple(at), np.array(values), low, high, tint, dashed=dashed)


def _boxes(result: Alignment) -> Iterator[Boxes]:
    for group in _groups(result):
        for method in _asked(result):
            samples = {k: [f.fit.error.value for f in result.of(method, group, k)] for k in result.layers(group)}
            if max(map(len, samples.values()), default=0) > 2:
                yield Boxes(
                    id=f"boxes-{group}-{method}",
                    title=f"{method}{GROUPS[group]}",
                    caption=f"{method}{GROUPS[group]}: quartiles over pairs of models; whiskers reach from 5 to 95 %.",
                    boxes=tuple(Box.of(f"layer {k}", v, whiskers=WHISKERS) for k, v in samples.items()),
                    y=ERROR,
                )


def _means(result: Alignment) -> Table:
    """Every method over all pairs of models and blocks: Table 4 of the paper, and relative errors."""
    rows: list[tuple[Cell, ...]] = []
    for group in _groups(result):
        blocks = [k for k in result.layers(group) if k] or list(result.layers(group))
        for method in result.methods:
            fits = [f.fit for k in blocks for f in result.of(method, group, k) if f.fit.error.known]
            if fits:
                squares = [fit.mse.value for fit in fits]
                inversion = max(fit.inversion for fit in fits)
                name = f"{FLOORS.get(method, method)}{GROUPS[group]}"
                rows.append((name, _mean(fits), float(np.mean(squares)), float(np.std(squares)), inversion))
    head = ("method", "relative error", "MSE", "± over pairs and layers", "largest inversion error")
    caption = "Mean over pairs of models and blocks, on rows that no map was fitted on, with 95 % intervals over texts."
    return Table(id="means", title="Every method", caption=caption, head=head, rows=tuple(rows), top=True)


def _mean(fits: list[Fit]) -> Value:
    """Mean relative error; all fits have the same resamples."""
    mean = float(np.mean([fit.error.value for fit in fits]))
    drawn = [fit.replicates for fit in fits if fit.replicates is not None]
    if len(drawn) < len(fits):
        return Value(mean)
    low, high = spread(np.array(mean), np.mean(drawn, axis=0), OVER_ROWS)
    return Value(mean, float(low), float(high))


def _table(result: Alignment) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for f in result.fits:
        fit = f.fit
        rows.append((f"{f.x} to {f.y}", FLOORS.get(fit.method, fit.method), fit.error, fit.r2, fit.mse, fit.inversion))
    head = ("layers", "method", "relative error", "R²", "MSE", "inversion error")
    return Table(id="fits", title="Every map", caption=JUDGED, head=head, rows=tuple(rows), shown=MAPS_SHOWN)


def injection_sections(result: Injection) -> Sections:
    """What the page of injected states shows."""
    first, second = (printable(m.name) for m in result.models)
    metric, task = printable(result.task["metric"]), printable(result.task["name"])
    own, errors = result.own[1].value, {f.method: f for f in result.fits}
    best = max((i for i in result.injected if not i.baseline), key=lambda i: i.value.value)
    names = tuple(FLOORS.get(i.name, i.name) for i in result.injected)
    how = {IDENTITY: " as it is", SHUFFLED: f", by {FLOORS[SHUFFLED]}"}
    picture = Bars(
        id="injected",
        title=f"{metric} of the head of {second}",
        caption=f"Its pooler and head read the last state of {first}, mapped; lines: both models with their own heads.",
        categories=names,
        bars=(Bar(metric, tuple(i.value for i in result.injected)),),
        levels=tuple(
            Level(f"{printable(i.name)}: own head", i.value.value, dash)
            for i, dash in zip(result.own, ("dot", "solid"), strict=True)
        ),
        y=metric,
    )
    rows: list[tuple[Cell, ...]] = []
    for name, i in zip(names, result.injected, strict=True):
        fit = errors.get(i.name)
        scores: tuple[Cell, ...] = ("", "") if fit is None else (fit.error, fit.inversion)
        rows.append((name, i.value, *scores, "baseline" if i.baseline else "map"))
    table = Table(
        id="injections",
        title="Every map and baseline",
        caption="On validation rows, with 95 % intervals over them; maps were fitted on training rows.",
        head=("read", metric, "relative error", "inversion error", "what"),
        rows=tuple(rows),
    )
    return Sections(
        title=f"{first} read by the head of {second}",
        cards=(
            Card(f"{second} with its own state", shown(own), f"{metric} on {task}"),
            Card(f"with the state of {first}, by {best.name}", shown(best.value), "the best map"),
            *(
                Card(f"with the state of {first}{how[i.name]}", shown(i.value), "a baseline")
                for i in result.injected
                if i.name in how
            ),
        ),
        sections=(Section("injected", "Injected states", (picture,), tables=(table,)),),
        models=result.models,
        summary=(task, metric, f"{result.task['rows']:,} rows fitted on"),
        warnings=result.warnings,
        facts={"Task": result.task, "Provenance": result.provenance},
        works=WORKS,
    )


def recovery_sections(result: Recovery) -> Sections:
    """What the page of a recovery shows: Table 3 of the paper, at several widths."""
    widths = sorted({r.features for r in result.recovered})
    methods = list(dict.fromkeys(r.fit.method for r in result.recovered))
    means = {(m, d): [f.error.value for f in result.of(m, d)] for m in methods for d in widths}
    lines = tuple(
        Line(
            FLOORS.get(m, m),
            tuple(d for d in widths if means[m, d]),
            np.array([np.mean(means[m, d]) for d in widths if means[m, d]]),
            tint=TINTS[m],
            dashed=m in FLOORS,
        )
        for m in methods
    )
    picture = Sizes(
        id="recovery",
        title="Relative error by number of features",
        caption="X are rows, Y a random invertible network of them: 0 is recovered. Linear maps are solved exactly.",
        lines=lines,
        x="features",
        y=ERROR,
        log=True,
    )
    several = len(result.sizes) > 1
    by_rows = tuple(_by_rows(result, methods, d) for d in widths if several)
    rows: list[tuple[Cell, ...]] = []
    for r in result.recovered:
        size = f"{r.train:,} rows, " if several else ""
        name = FLOORS.get(r.fit.method, r.fit.method)
        bijection = f"{r.features} features, {size}truth {r.truth}"
        rows.append((bijection, name, r.fit.mse, r.fit.error, r.fit.inversion))
    head = ("bijection", "method", "MSE", "relative error", "inversion error")
    table = Table(id="table3", title="Every fit", caption=JUDGED, head=head, rows=tuple(rows))
    cards = []
    for d in widths:
        if means.get(("inn", d)) and means.get(("ridge", d)):
            times = float(np.mean(means["ridge", d])) / float(np.mean(means["inn", d]))
            cards.append(Card(f"{d} features", f"{times:.1f}× less error", "inn against ridge"))
    data = result.data
    return Sections(
        title="Recovery of a random bijection",
        cards=tuple(cards),
        sections=(Section("recovery", "Recovery", (picture, *by_rows), tables=(table,)),),
        summary=(printable(data["rows"]), f"{data['train']:,} rows fitted on, {data['test']:,} others judged on"),
        warnings=result.warnings,
        facts={"Data": data, "Provenance": result.provenance},
        works=WORKS,
    )


def _by_rows(result: Recovery, methods: list[str], features: int) -> Sizes:
    """Mean error over truths, by number of rows fitted on."""
    lines = []
    for method in methods:
        at = {n: [f.error.value for f in result.of(method, features, n)] for n in result.sizes}
        at = {n: errors for n, errors in at.items() if errors}
        means = np.array([np.mean(errors) for errors in at.values()])
        lines.append(Line(FLOORS.get(method, method), tuple(at), means, tint=TINTS[method], dashed=method in FLOORS))
    return Sizes(
        id=f"rows-{features}",
        title=f"Relative error by number of rows, {features} features",
        caption="The same rows are judged on, whatever the number fitted on.",
        lines=tuple(line for line in lines if line.layers),
        x="rows fitted on",
        y=ERROR,
        log=True,
    )
