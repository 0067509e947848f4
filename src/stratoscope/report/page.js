"use strict";
(() => {
  const result = JSON.parse(document.getElementById("result").textContent);
  const $ = (id) => document.getElementById(id);
  const measure = $("measure"), view = $("view");
  const PALETTE = ["#3a8dcc", "#e0702e", "#17a57a", "#cf7fae", "#b08d1a", "#56b4e9", "#9a63bd", "#8c8c8c"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  const QUIET = { displayModeBar: false, responsive: false };

  // Plotly reads a little HTML in its labels; a name is text, so its special characters become entities.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, room) => {
    if (text.length <= room) return text;
    const head = Math.floor((room - 1) / 3);
    return text.slice(0, head) + "…" + text.slice(text.length - (room - 1 - head));
  };
  const digits = (v) => v.toFixed(3);
  const layerName = ([model, index]) => `${result.models[model]}:${index}`;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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
    const low = part.low && part.low[i][j], high = part.high && part.high[i][j];
    const interval = typeof low === "number" && typeof high === "number" ? ` [${digits(low)}, ${digits(high)}]` : "";
    return `${names} = ${digits(part.values[i][j])}${interval}`;
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
    const step = [1, 2, 3, 4, 6, 12].find((s) => s * cell >= 16) || 24;
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
    const room = Math.min($("heatmap").parentElement.clientWidth - (window.innerWidth < 480 ? 24 : 40), 760);
    const cell = Math.min((room - margin.l - margin.r) / across, 620 / up, 44);
    const base = { showgrid: false, zeroline: false, fixedrange: true, ticks: "outside", ticklen: 3,
                   tickcolor: color("--line"), tickfont: { size: 10, color: color("--muted") }, tickangle: 0 };
    const name = (b, angle, x, y, anchors) => ({
      text: `<b>${plain(short(result.models[b.model], Math.max(4, Math.floor((b.stop - b.start) * cell / 9))))}</b>`,
      x, y, textangle: angle, showarrow: false, font: { size: 13, color: color("--ink") }, ...anchors });
    const middle = (b) => (b.start + b.stop - 1) / 2;
    const rule = (points) => ({ type: "line", line: { color: color("--card"), width: 2 }, ...points });
    const layout = {
      width: margin.l + margin.r + cell * across, height: margin.t + margin.b + cell * up, margin,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: color("--gap"), dragmode: false,
      font: { family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: color("--ink"), bordercolor: color("--ink"), font: { color: color("--card"), size: 13 } },
      xaxis: { ...base, range: [-0.5, across - 0.5], ...ticks(part.columns, cell) },
      yaxis: { ...base, range: [-0.5, up - 0.5], ...ticks(part.rows, cell) },
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
      hovertemplate: "%{text}<extra></extra>",
      colorbar: { orientation: "h", x: 0.5, y: 1, yanchor: "bottom", ypad: 4, thickness: 9, outlinewidth: 0,
                  len: 1, xpad: 0, nticks: 6, tickfont: { size: 10, color: color("--muted") }, ticklabelposition: "outside top",
                  title: { text: plain(m.measure), side: "top", font: { size: 12, color: color("--muted") } } },
    };
    Plotly.react($("heatmap"), [trace], layout, QUIET);
    const gone = part.rows.filter((_, i) => part.values[i].every((v) => v === null)).map(layerName);
    $("gaps").textContent = part.values.some((row) => row.includes(null))
      ? "Grey cells have no value" + (gone.length ? `: ${gone.join(", ")} constant on these rows.` : ".") : "";
    return part;
  }

  function drawCurves(id, series, missing) {
    const box = $(id);
    if (!series.length) {
      box.textContent = missing;
      return;
    }
    const traces = series.flatMap((s, k) => {
      const x = s.layers, name = s.models.map((m) => result.models[m]).join(" and "), tint = PALETTE[k % PALETTE.length];
      const line = { x, y: s.values, mode: "lines+markers", name: plain(short(name, 34)), line: { color: tint, width: 2 },
                     marker: { symbol: SYMBOLS[k % SYMBOLS.length], size: 7 }, legendgroup: String(k),
                     text: s.values.map((v, i) => plain(`${name}, layer ${x[i]}: ${v === null ? "–" : digits(v)}`)),
                     hovertemplate: "%{text}<extra></extra>" };
      if (!s.low) return [line];
      const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: String(k) };
      return [{ ...edge, y: s.low }, { ...edge, y: s.high, fill: "tonexty", fillcolor: tint + "33" }, line];
    });
    const deepest = Math.max(...series.flatMap((s) => s.layers));
    const axis = { gridcolor: color("--line"), zeroline: false, fixedrange: true, tickfont: { color: color("--muted") },
                   linecolor: color("--line"), title: { font: { size: 12, color: color("--muted") } } };
    Plotly.react(box, traces, {
      width: box.clientWidth, height: 330, margin: { l: 44, r: 8, t: 8, b: 44 }, dragmode: false, showlegend: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: color("--ink") },
      legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 12 } },
      hoverlabel: { bgcolor: color("--ink"), font: { color: color("--card"), size: 13 } },
      xaxis: { ...axis, range: [-0.4, deepest + 0.4], title: { ...axis.title, text: "layer" }, showgrid: false, nticks: 14 },
      yaxis: { ...axis, ...(id === "drift" ? { range: [chosen().range[0] - 0.03, chosen().range[1] + 0.03] } : {}) },
    }, QUIET);
  }

  function fillTable() {
    if (!$("values").open) return;
    const part = crop(chosen()), table = document.createElement("table");
    const cell = (row, tag, text, scope) => {
      const made = row.appendChild(document.createElement(tag));
      made.textContent = text;
      if (scope) made.scope = scope;
    };
    const head = table.createTHead().insertRow();
    cell(head, "th", "row × column", "col");
    part.columns.forEach((c) => cell(head, "th", layerName(c), "col"));
    const body = table.createTBody();
    part.rows.forEach((r, i) => {
      const row = body.insertRow();
      cell(row, "th", layerName(r), "row");
      part.values[i].forEach((v) => cell(row, "td", v === null ? "–" : digits(v)));
    });
    $("values").lastElementChild.replaceChildren(table);
  }

  function draw() {
    if (!result.matrices.length) return;
    drawHeatmap();
    drawCurves("drift", result.drift[chosen().measure] || [], "No two models here have equally many layers.");
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
  draw();
  if (result.matrices.length) {
    $("heatmap").on("plotly_hover", ({ points: [p] }) => { $("readout").textContent = cellText(crop(chosen()), p.y, p.x); });
  }
  measure.addEventListener("change", draw);
  view.addEventListener("change", draw);
  $("values").addEventListener("toggle", fillTable);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width !== window.innerWidth) { width = window.innerWidth; draw(); }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
