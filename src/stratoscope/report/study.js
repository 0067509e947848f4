(() => {
  const { $, digits, interval, result } = plots;
  const unit = $("unit"), measure = $("measure");
  const ask = "Point at a cell to read its value.";

  const panel = (p) => ({
    ...p,
    gap: p.values[0].every((v) => v === null) ? "constant" : "",
    said: (i, j) => {
      const names = `${p.title}, ${p.yname}:${p.y[i]} × ${p.xname}:${p.x[j]}`;
      if (p.values[i][j] === null) return `${names}: no value (a constant layer)`;
      return `${names} = ${digits(p.values[i][j])}${interval(p.low && p.low[i][j], p.high && p.high[i][j])}`;
    },
  });

  function draw() {
    const here = result.units[Number(unit.value)], shown = here.measures.find((m) => m.measure === measure.value) || here.measures[0];
    plots.heats($("panels"), shown.panels.map(panel), { range: here.range, bar: shown.measure, most: 30,
                                                        onHover: (text) => { $("readout").textContent = text; } });
    if (shown.drift.length) plots.curves($("drift"), shown.drift, { title: "1 − CKA", range: here.drift });
    else $("drift").textContent = "The tuned models do not have the base model's layers.";
    if (result.localization) plots.curves($("localization"), result.localization, { title: "neuronsim − svsim" });
    document.querySelectorAll("[data-unit]").forEach((t) => {
      t.hidden = t.dataset.unit !== unit.value || (t.dataset.measure !== undefined && t.dataset.measure !== shown.measure);
    });
    $("readout").textContent = ask;
  }

  plots.keepDrawn(draw);
  unit.addEventListener("change", draw);
  measure.addEventListener("change", draw);
})();
