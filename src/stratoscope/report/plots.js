"use strict";
/** What every page draws with; the page's own script follows this one. */
const plots = (() => {
  const PALETTE = ["#3a8dcc", "#e0702e", "#17a57a", "#cf7fae", "#b08d1a", "#56b4e9", "#9a63bd", "#8c8c8c"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  const QUIET = { displayModeBar: false, responsive: false };

  const $ = (id) => document.getElementById(id);
  // Plotly reads a little HTML in its labels; a name is text, so its special characters become entities.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, room) => {
    if (text.length <= room) return text;
    const head = Math.floor((room - 1) / 3);
    return text.slice(0, head) + "…" + text.slice(text.length - (room - 1 - head));
  };
  const digits = (v) => v.toFixed(3);
  const interval = (low, high) => typeof low === "number" && typeof high === "number" ? ` [${digits(low)}, ${digits(high)}]` : "";
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const stride = (cell) => [1, 2, 3, 4, 6, 12].find((s) => s * cell >= 16) || 24;
  // A window may be folded to nothing for a moment; a picture of negative width would be an error.
  const room = (box) => Math.max(box.parentElement.clientWidth - (window.innerWidth < 480 ? 24 : 40), 200);

  /** What all pictures share; a function, because the colours follow the reader's light or dark scheme. */
  const look = () => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, color: color("--ink") },
    hoverlabel: { bgcolor: color("--ink"), bordercolor: color("--ink"), font: { color: color("--card"), size: 13 } },
  });
  const heatAxis = () => ({
    showgrid: false, zeroline: false, fixedrange: true, ticks: "outside", ticklen: 3, tickcolor: color("--line"),
    tickfont: { size: 10, color: color("--muted") }, tickangle: 0,
  });
  const colorbar = (title) => ({
    orientation: "h", x: 0.5, y: 1, yanchor: "bottom", ypad: 4, thickness: 9, outlinewidth: 0, len: 1, xpad: 0, nticks: 6,
    tickfont: { size: 10, color: color("--muted") }, ticklabelposition: "outside top",
    title: { text: plain(title), side: "top", font: { size: 12, color: color("--muted") } },
  });

  /**
   * Curves over layers, with a band where a series has low and high; a missing layer is a gap.
   * lines: [{name, value, dash}] drawn across; tints: the places of the series in the palette.
   */
  function curves(box, series, { range, title = "", lines = [], tints = [], height = 330 } = {}) {
    const deepest = Math.max(...series.flatMap((s) => s.layers));
    const traces = series.flatMap((s, k) => {
      const p = tints[k] ?? k, x = s.layers, tint = PALETTE[p % PALETTE.length];
      const said = (v, i) => `${s.name}, layer ${x[i]}: ${v === null ? "no value" : digits(v) + interval(s.low && s.low[i], s.high && s.high[i])}`;
      const line = { x, y: s.values, mode: "lines+markers", name: plain(short(s.name, 34)), line: { color: tint, width: 2, dash: s.dash || "solid" },
                     marker: { symbol: SYMBOLS[p % SYMBOLS.length], size: 7 }, legendgroup: String(k),
                     text: s.values.map((v, i) => plain(said(v, i))), hovertemplate: "%{text}<extra></extra>" };
      if (!s.low) return [line];
      const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: String(k) };
      return [{ ...edge, y: s.low }, { ...edge, y: s.high, fill: "tonexty", fillcolor: tint + "33" }, line];
    });
    lines.forEach((l) => traces.push({
      x: [-0.4, deepest + 0.4], y: [l.value, l.value], mode: "lines", name: plain(`${l.name} ${digits(l.value)}`),
      line: { color: color(l.tint || "--muted"), width: 1.5, dash: l.dash }, hoverinfo: "skip" }));
    const axis = { gridcolor: color("--line"), zeroline: false, fixedrange: true, tickfont: { color: color("--muted") },
                   linecolor: color("--line"), title: { font: { size: 12, color: color("--muted") } } };
    Plotly.react(box, traces, {
      ...look(), width: box.clientWidth, height, margin: { l: title ? 56 : 44, r: 8, t: 8, b: 44 }, showlegend: true,
      legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 12 } },
      xaxis: { ...axis, range: [-0.4, deepest + 0.4], title: { ...axis.title, text: "layer" }, showgrid: false,
               tick0: 0, dtick: deepest <= 14 ? 1 : deepest <= 30 ? 2 : 6 },
      yaxis: { ...axis, ...(title ? { title: { ...axis.title, text: plain(title) } } : {}), ...(range ? { range } : {}) },
    }, QUIET);
  }

  /**
   * Heatmaps on one colour scale, as many side by side as fit.
   * panel: {title, x, y (tick labels), xname, yname, values, said (i, j) => text, gap: text in constant strips}
   */
  function heats(box, panels, { range, bar, columns = 5, most = 44, back = color("--gap"), onHover = () => {}, shapes = () => [] }) {
    const pad = { l: 50, r: 12, t: panels.some((p) => p.title) ? 26 : 6, b: 48 }, top = 58, wide = room(box);
    const across = Math.max(...panels.map((p) => p.x.length)), up = Math.max(...panels.map((p) => p.y.length));
    const least = window.innerWidth < 480 ? 9 : 12;
    let n = Math.min(columns, panels.length);
    while (n > 1 && (wide / n - pad.l - pad.r) / across < least) n -= 1;
    if (n < panels.length) n = Math.ceil(panels.length / Math.ceil(panels.length / n));
    const cell = Math.min((wide / n - pad.l - pad.r) / across, most), rows = Math.ceil(panels.length / n);
    const w = pad.l + pad.r + cell * across, h = pad.t + pad.b + cell * up;
    const width = w * n, height = top + h * rows;
    const layout = { ...look(), width, height, margin: { l: 0, r: 0, t: top, b: 0 }, plot_bgcolor: back, annotations: [], shapes: [],
                     coloraxis: { cmin: range[0], cmax: range[1], colorscale: "Viridis",
                                  colorbar: { ...colorbar(bar), lenmode: "pixels", len: Math.min(width - pad.l - pad.r, 520), ypad: 2 } } };
    const ticks = (names) => {
      const at = names.map((_, k) => k).filter((k) => k % stride(cell) === 0);
      return { tickvals: at, ticktext: at.map((k) => names[k]) };
    };
    const traces = panels.map((p, k) => {
      const id = k ? String(k + 1) : "", left = (k % n) * w + pad.l, above = Math.floor(k / n) * h + pad.t;
      const x = [left / width, (left + cell * p.x.length) / width];
      const y = [1 - (above + cell * p.y.length) / (height - top), 1 - above / (height - top)];
      layout["xaxis" + id] = { ...heatAxis(), domain: x, anchor: "y" + id, range: [-0.5, p.x.length - 0.5], ...ticks(p.x) };
      layout["yaxis" + id] = { ...heatAxis(), domain: y, anchor: "x" + id, range: [-0.5, p.y.length - 0.5], ...ticks(p.y) };
      const fits = (span) => Math.max(4, Math.floor(span * cell / 7.5));
      const text = (words, more) => ({ text: words, showarrow: false, xref: "paper", yref: "paper",
                                       font: { size: 12, color: color("--muted") }, ...more });
      layout.annotations.push(
        text(`<b>${plain(short(p.title, fits(p.x.length + 2)))}</b>`, { x: x[0], y: y[1], xanchor: "left", yanchor: "bottom", yshift: 3, font: { size: 13, color: color("--ink") } }),
        text(plain(short(p.xname, fits(p.x.length + 1))), { x: (x[0] + x[1]) / 2, y: y[0], xanchor: "center", yanchor: "top", yshift: -20 }),
        text(plain(short(p.yname, fits(p.y.length + 1))), { x: x[0], y: (y[0] + y[1]) / 2, xanchor: "right", yanchor: "middle", xshift: -22, textangle: -90 }));
      if (p.gap) layout.annotations.push({ text: p.gap, showarrow: false, xref: "x" + id, yref: "y" + id, x: (p.x.length - 1) / 2, y: 0,
                                           font: { size: Math.min(10, cell - 3), color: color("--muted") } });
      layout.shapes.push(...shapes(p, "x" + id, "y" + id));
      return { type: "heatmap", z: p.values, xaxis: "x" + id, yaxis: "y" + id, coloraxis: "coloraxis", hoverongaps: true,
               text: p.values.map((row, i) => row.map((_, j) => plain(p.said(i, j)).replace(/: | = /, "<br>$&"))), hovertemplate: "%{text}<extra></extra>" };
    });
    Plotly.react(box, traces, layout, QUIET);
    box.removeAllListeners("plotly_hover");
    box.on("plotly_hover", ({ points: [p] }) => onHover(panels[p.curveNumber].said(p.y, p.x)));
  }

  /** Values as a table: names of columns and rows, and text by position. */
  function table(corner, columns, rows, text) {
    const made = document.createElement("table");
    const cell = (row, tag, words, scope) => {
      const added = row.appendChild(document.createElement(tag));
      added.textContent = words;
      if (scope) added.scope = scope;
    };
    const head = made.createTHead().insertRow(), body = made.createTBody();
    cell(head, "th", corner, "col");
    columns.forEach((name) => cell(head, "th", name, "col"));
    rows.forEach((name, i) => {
      const row = body.insertRow();
      cell(row, "th", name, "row");
      columns.forEach((_, j) => cell(row, "td", text(i, j)));
    });
    return made;
  }

  /** Draw now, and again when the width or the colour scheme changes. */
  function keepDrawn(draw) {
    draw();
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (width !== window.innerWidth) { width = window.innerWidth; draw(); }
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  return { QUIET, $, plain, short, digits, interval, color, stride, room, look, heatAxis, colorbar, curves, heats, table, keepDrawn,
           result: JSON.parse($("result").textContent) };
})();
