(() => {
  const { QUIET, $, plain, short, digits, interval, color, stride, result } = plots;
  const measure = $("measure"), view = $("view");
  const layerName = ([model, index]) => `${result.models[model]}:${index}`;
  const chosen = () => result.matrices.find((m) => m.measure === measure.value) || result.matrices[0];

  /** The part of a matrix the view asks for: "all", or "row model,column model". */
  function crop(m) {
    const [r, c] = view.value === "all" ? [null, null] : view.value.split(",").map(Number);
    const keep = (axis, model) => axis.map((_, k) => k).filter((k) => model === null || axis[k][0] === model);
    const i = keep(m.rows, r), j = keep(m.columns, c);
    const cut = (v) => v && i.map((a) => j.map((b) => v[a][b]));
    return { rows: i.map((k) => m.rows[k]), columns: j.map((k) => m.columns[k]),
             values: cut(m.values), low: cut(m.low), high: cut(m.high) };
  }

  function cellText(part, i, j) {
    const names = `${layerName(part.rows[i])} × ${layerName(part.columns[j])}`;
    if (part.values[i][j] === null) return `${names}: no value (a constant layer)`;
    return `${names} = ${digits(part.values[i][j])}${interval(part.low && part.low[i][j], part.high && part.high[i][j])}`;
  }

  /** The same text for the label at the pointer, in lines where it would be wider than the picture. */
  function hoverText(part, i, j, width) {
    const text = cellText(part, i, j), column = layerName(part.columns[j]);
    if (text.length * 7 < width) return plain(text);
    const rest = text.slice(layerName(part.rows[i]).length + " × ".length + column.length);
    return [layerName(part.rows[i]), `× ${column}`, rest.trim()].map((line) => plain(short(line, Math.floor(width / 8)))).join("<br>");
  }

  /** Consecutive positions of one model on an axis. */
  function blocks(axis) {
    const found = [];
    axis.forEach(([model], k) => {
      const last = found[found.length - 1];
      if (last && last.model === model) last.stop = k + 1;
      else found.push({ model, start: k, stop: k + 1 });
    });
    return found;
  }

  function ticks(axis, cell) {
    const step = stride(cell);
    const at = blocks(axis).flatMap(({ start, stop }) => {
      const inside = [];
      for (let k = start; k < stop; k += step) if (step === 1 || stop === axis.length || stop - k > step / 2) inside.push(k);
      return inside;
    });
    return { tickvals: at, ticktext: at.map((k) => String(axis[k][1])) };
  }

  function drawHeatmap() {
    const m = chosen(), part = crop(m);
    const margin = { l: 52, r: 8, t: 64, b: 52 };
    const across = part.columns.length, up = part.rows.length;
    const room = Math.min(plots.room($("heatmap")), 760);
    const cell = Math.min((room - margin.l - margin.r) / across, 620 / up, 44);
    const name = (b, angle, x, y, anchors) => ({
      text: `<b>${plain(short(result.models[b.model], Math.max(4, Math.floor((b.stop - b.start) * cell / 9))))}</b>`,
      x, y, textangle: angle, showarrow: false, font: { size: 13, color: color("--ink") }, ...anchors });
    const middle = (b) => (b.start + b.stop - 1) / 2;
    const rule = (points) => ({ type: "line", line: { color: color("--card"), width: 2 }, ...points });
    const layout = {
      ...plots.look(), plot_bgcolor: color("--gap"), margin,
      width: margin.l + margin.r + cell * across, height: margin.t + margin.b + cell * up,
      xaxis: { ...plots.heatAxis(), range: [-0.5, across - 0.5], ...ticks(part.columns, cell) },
      yaxis: { ...plots.heatAxis(), range: [-0.5, up - 0.5], ...ticks(part.rows, cell) },
      annotations: [
        ...blocks(part.columns).map((b) => name(b, 0, middle(b), 0, { yref: "paper", yanchor: "top", yshift: -24 })),
        ...blocks(part.rows).map((b) => name(b, -90, 0, middle(b), { xref: "paper", xanchor: "right", xshift: -26 })),
      ],
      shapes: [
        ...blocks(part.columns).slice(1).map((b) => rule({ yref: "paper", x0: b.start - 0.5, x1: b.start - 0.5, y0: 0, y1: 1 })),
        ...blocks(part.rows).slice(1).map((b) => rule({ xref: "paper", x0: 0, x1: 1, y0: b.start - 0.5, y1: b.start - 0.5 })),
      ],
    };
    const trace = {
      type: "heatmap", z: part.values, colorscale: "Viridis", zmin: m.range[0], zmax: m.range[1], hoverongaps: true,
      text: part.values.map((row, i) => row.map((_, j) => hoverText(part, i, j, layout.width))),
      hovertemplate: "%{text}<extra></extra>", colorbar: plots.colorbar(m.measure),
    };
    Plotly.react($("heatmap"), [trace], layout, QUIET);
    const gone = part.rows.filter((_, i) => part.values[i].every((v) => v === null)).map(layerName);
    $("gaps").textContent = part.values.some((row) => row.includes(null))
      ? "Grey cells have no value" + (gone.length ? `: ${gone.join(", ")} constant on these rows.` : ".") : "";
  }

  function drawCurves(id, found, missing, options) {
    const series = found.map((s) => ({ ...s, name: s.name || s.models.map((m) => result.models[m]).join(" and ") }));
    if (series.length) plots.curves($(id), series, options);
    else $(id).textContent = missing;
  }

  function fillTable() {
    if (!$("values").open) return;
    const part = crop(chosen());
    const text = (i, j) => (part.values[i][j] === null ? "–" : digits(part.values[i][j]));
    $("values").lastElementChild.replaceChildren(
      plots.table("row × column", part.columns.map(layerName), part.rows.map(layerName), text));
  }

  function draw() {
    if (!result.matrices.length) return;
    const [low, high] = chosen().range;
    drawHeatmap();
    drawCurves("drift", result.drift[chosen().measure] || [], "No two models here have equally many layers.",
               { range: [low - 0.03, high + 0.03] });
    drawCurves("localization", result.localization, "Needs both neuronsim and svsim.");
    $("description").textContent = chosen().description;
    document.querySelectorAll("#blocks [data-measure]").forEach((t) => { t.hidden = t.dataset.measure !== measure.value; });
    $("readout").textContent = "Point at a cell to read its value.";
    fillTable();
  }

  function option(value, text, group) {
    const made = (group || view).appendChild(document.createElement("option"));
    made.value = value;
    made.textContent = text;
  }

  function fillViews() {
    option("all", "All models");
    const group = (label) => {
      const made = view.appendChild(document.createElement("optgroup"));
      made.label = label;
      return made;
    };
    const one = group("Within one model"), two = group("Rows × columns");
    result.models.forEach((a, i) => option(`${i},${i}`, short(a, 40), one));
    result.models.forEach((a, i) => result.models.forEach((b, j) => {
      if (i !== j) option(`${i},${j}`, `${short(a, 30)} × ${short(b, 30)}`, two);
    }));
    if (!two.children.length) two.remove();
  }

  fillViews();
  plots.keepDrawn(draw);
  if (result.matrices.length) {
    $("heatmap").on("plotly_hover", ({ points: [p] }) => { $("readout").textContent = cellText(crop(chosen()), p.y, p.x); });
  }
  measure.addEventListener("change", draw);
  view.addEventListener("change", draw);
  $("values").addEventListener("toggle", fillTable);
})();
