"use strict";
(() => {
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  const SYMBOLS_ON = 3; // from one line of a colour to the next
  const QUIET = { displayModeBar: false, responsive: false };
  const PRINT_WIDTH = 680;
  const $ = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const { palette, scale, pictures } = JSON.parse($("result").textContent);
  const figures = all("[data-picture]").map((box) => ({ box, plot: box.querySelector(".plot"), view: "all", spec: pictures[box.dataset.picture] }));

  // ---- words and numbers

  /** Plotly reads a little HTML in its labels; a name is text, so its special characters become entities. */
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, room) => {
    if (text.length <= room) return text;
    const head = Math.floor((room - 1) / 3);
    return text.slice(0, head) + "…" + text.slice(text.length - (room - 1 - head));
  };
  /** As `labels.decimals`: digits that show how far a value is from 0 and from 1. */
  function decimals(v) {
    const size = Math.abs(v);
    if (size >= 10) return size < 100 ? 2 : size < 1000 ? 1 : 0;
    const near = Math.min(...[size, Math.abs(1 - size)].filter((d) => d >= 1e-7), 1);
    return near >= 0.01 ? 3 : Math.min(Math.ceil(-Math.log10(near)) + 1, 6);
  }
  const known = (v) => typeof v === "number";
  const number = (v, places = decimals(v)) => (v < 0 ? "−" : "") + Math.abs(v).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  const shown = (v, low, high) => !known(v) ? "no value" : number(v) + (known(low) && known(high) ? ` [${number(low, decimals(v))}, ${number(high, decimals(v))}]` : "");

  // ---- the look

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const tint = (k) => palette[k % palette.length];
  const narrow = () => window.innerWidth < 480;
  const printing = () => document.documentElement.classList.contains("print");
  const room = (plot) => printing() ? PRINT_WIDTH : Math.max(plot.parentElement.clientWidth, 200);
  const look = () => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, color: color("--ink") },
    hoverlabel: { bgcolor: color("--ink"), bordercolor: color("--ink"), font: { color: color("--card"), size: 13 }, align: "left" },
  });
  const lines = () => ({ gridcolor: color("--line"), zeroline: false, fixedrange: true, tickfont: { size: 11, color: color("--muted") },
                         linecolor: color("--line"), title: { font: { size: 12, color: color("--muted") } } });
  const titled = (axis, text) => ({ ...axis, title: { ...axis.title, text: plain(text), standoff: 8 }, automargin: true });

  // ---- heatmaps

  /** The part of a heatmap that the view asks for: "all", or "row group,column group". */
  function crop(h, view) {
    if (view === "all") return h;
    const [r, c] = view.split(",").map(Number), rows = h.rows.groups[r], columns = h.columns.groups[c];
    const cut = (v) => v && v.slice(rows.start, rows.stop).map((row) => row.slice(columns.start, columns.stop));
    const axis = (a, g) => ({ ...a, names: a.names.slice(g.start, g.stop), ticks: a.ticks.slice(g.start, g.stop), groups: [{ ...g, start: 0, stop: g.stop - g.start }] });
    return { ...h, rows: axis(h.rows, rows), columns: axis(h.columns, columns), values: cut(h.values), low: cut(h.low), high: cut(h.high), marks: cut(h.marks),
             beside: Object.fromEntries(Object.entries(h.beside).map(([k, v]) => [k, cut(v)])) };
  }

  function cellText(h, i, j) {
    const names = h.rows.names[i] + h.joint + h.columns.names[j], v = h.values[i][j];
    if (!known(v)) return `${names}: ${h.missing}`;
    const more = Object.entries(h.beside).filter(([, w]) => known(w[i][j])).map(([name, w]) => `; ${name} ${number(w[i][j])}`);
    return `${names} = ${shown(v, h.low && h.low[i][j], h.high && h.high[i][j])}${more.join("")}`;
  }

  /** The same for the label at the pointer, in lines where it would be wide. */
  const cellLabel = (h, i, j, width) => {
    const text = plain(cellText(h, i, j));
    return text.length * 7 < width ? text : text.replace(h.joint, `<br>${h.joint.trimStart()}`).replace(/ = |: (?=[^:]*$)/, "<br>$&").replace(/; /g, "<br>");
  };

  function ticks(axis, cell) {
    const step = [1, 2, 3, 4, 6, 12].find((s) => s * cell >= 16) || 24, count = axis.ticks.length;
    const groups = axis.groups.length ? axis.groups : [{ start: 0, stop: count }], at = [];
    groups.forEach(({ start, stop }) => {
      for (let k = start; k < stop; k += step) if (step === 1 || stop === count || stop - k > step / 2) at.push(k);
    });
    return { tickvals: at, ticktext: at.map((k) => axis.ticks[k]) };
  }

  /** Heatmaps on one colour scale, as many side by side as fit. */
  function heats(plot, panels, say) {
    const alone = panels.length === 1, wide = Math.min(room(plot), alone ? 780 : 1180), phone = narrow();
    const pad = { l: 54, r: 10, t: panels.some((p) => p.title) ? 26 : 6, b: 50 }, top = 56;
    const across = Math.max(...panels.map((p) => p.columns.ticks.length)), up = Math.max(...panels.map((p) => p.rows.ticks.length));
    let n = Math.min(5, panels.length);
    while (n > 1 && (wide / n - pad.l - pad.r) / across < (phone ? 9 : 12)) n -= 1;
    if (n < panels.length) n = Math.ceil(panels.length / Math.ceil(panels.length / n));
    const cell = Math.min((wide / n - pad.l - pad.r) / across, alone ? Math.max((printing() ? 430 : 640) / up, 6) : 27, 44), rows = Math.ceil(panels.length / n);
    const w = pad.l + pad.r + cell * across, h = pad.t + pad.b + cell * up, width = Math.max(w * n, 200), height = top + h * rows;
    const first = panels[0];
    const layout = {
      ...look(), width, height, margin: { l: 0, r: 0, t: top, b: 0 }, plot_bgcolor: first.hatched ? color("--gap") : "rgba(0,0,0,0)", annotations: [], shapes: [],
      coloraxis: {
        cmin: first.range[0], cmax: first.range[1], colorscale: scale.map((c, k) => [k / (scale.length - 1), c]),
        colorbar: { orientation: "h", x: 0.5, y: 1, yanchor: "bottom", ypad: 3, xpad: 0, thickness: 9, outlinewidth: 0, lenmode: "pixels", len: Math.min(width - pad.l - pad.r, 460), nticks: 6,
                    tickfont: { size: 10, color: color("--muted") }, ticklabelposition: "outside top", title: { text: plain(first.unit), side: "top", font: { size: 12, color: color("--muted") } } },
      },
    };
    const axis = () => ({ showgrid: false, zeroline: false, fixedrange: true, ticks: "outside", ticklen: 3, tickcolor: color("--line"), tickfont: { size: 10, color: color("--muted") }, tickangle: 0 });
    const fits = (span) => Math.max(4, Math.floor(span * cell / 7.6));
    const traces = panels.map((p, k) => {
      const id = k ? String(k + 1) : "", left = (k % n) * w + pad.l, above = Math.floor(k / n) * h + pad.t, xs = p.columns.ticks.length, ys = p.rows.ticks.length;
      const x = [left / width, (left + cell * xs) / width], y = [1 - (above + cell * ys) / (height - top), 1 - above / (height - top)].map((v) => Math.max(0, v));
      layout["xaxis" + id] = { ...axis(), domain: x, anchor: "y" + id, range: [-0.5, xs - 0.5], ...ticks(p.columns, cell) };
      layout["yaxis" + id] = { ...axis(), domain: y, anchor: "x" + id, range: [-0.5, ys - 0.5], ...ticks(p.rows, cell) };
      const text = (words, more) => layout.annotations.push({ text: words, showarrow: false, font: { size: 12, color: color("--ink") }, ...more });
      const middle = (g) => (g.start + g.stop - 1) / 2;
      const xgroups = p.columns.groups.length ? p.columns.groups : [{ name: p.columns.title, start: 0, stop: xs }];
      const ygroups = p.rows.groups.length ? p.rows.groups : [{ name: p.rows.title, start: 0, stop: ys }];
      xgroups.forEach((g) => text(plain(short(g.name, fits(g.stop - g.start + 1))), { xref: "x" + id, x: middle(g), yref: "paper", y: y[0], yanchor: "top", yshift: -19 }));
      ygroups.forEach((g) => text(plain(short(g.name, fits(g.stop - g.start + 1))), { yref: "y" + id, y: middle(g), xref: "paper", x: x[0], xanchor: "right", xshift: -22, textangle: -90 }));
      if (p.title && !alone) text(`<b>${plain(short(p.title, Math.floor((cell * xs + pad.r + 20) / 9.6)))}</b>`, { xref: "paper", yref: "paper", x: x[0], y: y[1], xanchor: "left", yanchor: "bottom", yshift: 2, font: { size: 13, color: color("--ink") } });
      if (p.strip && p.values[0].every((v) => !known(v))) text(p.strip, { xref: "x" + id, yref: "y" + id, x: (xs - 1) / 2, y: 0, font: { size: Math.min(10, Math.max(cell - 3, 1)), color: color("--muted") } });
      const rule = (points) => layout.shapes.push({ type: "line", line: { color: color("--card"), width: 2 }, ...points });
      p.columns.groups.slice(1).forEach((g) => rule({ xref: "x" + id, yref: "y" + id, x0: g.start - 0.5, x1: g.start - 0.5, y0: -0.5, y1: ys - 0.5 }));
      p.rows.groups.slice(1).forEach((g) => rule({ xref: "x" + id, yref: "y" + id, x0: -0.5, x1: xs - 0.5, y0: g.start - 0.5, y1: g.start - 0.5 }));
      (p.marks || []).forEach((row, i) => row.forEach((marked, j) => {
        if (marked) layout.shapes.push({ type: "rect", xref: "x" + id, yref: "y" + id, x0: j - 0.42, x1: j + 0.42, y0: i - 0.42, y1: i + 0.42, line: { color: "#1b2030", width: 1 } });
      }));
      const numbers = p.numbers && cell >= 26 ? { text: p.values.map((row) => row.map((v) => known(v) ? v.toFixed(2).replace("0.", ".") : "")), texttemplate: "%{text}", textfont: { size: 10 } } : {};
      return { type: "heatmap", z: p.values, xaxis: "x" + id, yaxis: "y" + id, coloraxis: "coloraxis", hoverongaps: true, ...numbers,
               customdata: p.values.map((row, i) => row.map((_, j) => cellLabel(p, i, j, width))), hovertemplate: "%{customdata}<extra></extra>" };
    });
    Plotly.react(plot, traces, layout, QUIET);
    listen(plot, ({ points: [p] }) => say(cellText(panels[p.curveNumber], p.y, p.x)));
  }

  // ---- curves, bars, boxes

  const across = (x0, x1) => (level) => ({
    x: [x0, x1], y: [level.value, level.value], mode: "lines", name: plain(`${level.name} ${number(level.value)}`), hoverinfo: "skip",
    line: { color: color(level.dash === "solid" ? "--ink" : "--muted"), width: 1.5, dash: level.dash } });
  const framed = (plot, more) => ({ ...look(), width: room(plot), height: printing() ? 270 : narrow() ? 340 : 380, margin: { l: 48, r: 8, t: 10, b: 40 }, showlegend: true,
                                    legend: { orientation: "h", y: -0.16, yanchor: "top", font: { size: 12 } }, ...more });

  /** 1, 2 and 5 times the powers of ten within the values. */
  function logAxis(spec) {
    const values = spec.lines.flatMap((s) => [...s.values, ...(s.low || []), ...(s.high || [])]).filter((v) => known(v) && v > 0);
    const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10), tickvals = [];
    for (let k = Math.floor(low); k <= high; k += 1) tickvals.push(...(high - low > 3 ? [1] : [1, 2, 5]).map((m) => m * 10 ** k));
    return { type: "log", tickvals, ticktext: tickvals.map((v) => v.toLocaleString("en")), range: [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)] };
  }

  /** Sizes apart by their ratios, each with its tick. */
  function sizesAxis(spec, sizes) {
    const tickvals = [...new Set(sizes)].sort((a, b) => a - b), [low, high] = [tickvals[0], tickvals[tickvals.length - 1]].map(Math.log10);
    return { ...titled(lines(), spec.x), type: "log", range: [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)], showgrid: false, tickvals, ticktext: tickvals.map((v) => v.toLocaleString("en")) };
  }

  function curves(plot, spec, say) {
    const name = spec.x.split(" ")[0], layers = spec.lines.flatMap((s) => s.layers), last = Math.max(1, ...layers), from = Math.min(0, ...layers);
    const words = (s, i) => `${s.name}, ${name} ${s.layers[i]}: ${shown(s.values[i], s.low && s.low[i], s.high && s.high[i])}`, owner = [];
    const traces = spec.lines.flatMap((s, k) => {
      const edge = { x: s.layers, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: String(k) };
      const band = s.low && s.high ? [{ ...edge, y: s.low }, { ...edge, y: s.high, fill: "tonexty", fillcolor: tint(s.tint) + "30" }] : [];
      const line = { x: s.layers, y: s.values, mode: "lines+markers", name: plain(short(s.name, 34)), legendgroup: String(k), line: { color: tint(s.tint), width: 2, dash: s.dashed ? "dash" : "solid" },
                     marker: { symbol: SYMBOLS[(s.tint % palette.length + SYMBOLS_ON * Math.floor(s.tint / palette.length)) % SYMBOLS.length], size: 7 }, customdata: s.values.map((_, i) => plain(words(s, i))), hovertemplate: "%{customdata}<extra></extra>" };
      owner.push(...band.map(() => null), s);
      return [...band, line];
    });
    traces.push(...spec.levels.map(across(from - 0.4, last + 0.4)));
    const y = titled(lines(), spec.y);
    Plotly.react(plot, traces, framed(plot, {
      xaxis: spec.type === "Sizes" ? sizesAxis(spec, layers)
        : { ...titled(lines(), spec.x), range: [from - 0.4, last + 0.4], showgrid: false, tick0: 0, dtick: last <= 14 ? (narrow() && last > 8 ? 2 : 1) : last <= 30 ? 2 : 6 },
      yaxis: { ...y, ...(spec.log ? logAxis(spec) : spec.range ? { range: spec.range } : {}) },
    }), QUIET);
    listen(plot, ({ points: [p] }) => { if (owner[p.curveNumber]) say(words(owner[p.curveNumber], p.pointNumber)); });
  }

  function bars(plot, spec, say) {
    const stacked = spec.type === "Stacks";
    const words = (b, k) => `${b.name}, ${spec.categories[k]}: ${shown(b.values[k].value, b.values[k].low, b.values[k].high)}`;
    const arm = (b, end) => b.values.map((v) => known(v[end]) ? Math.abs(v[end] - v.value) : 0);
    const traces = spec.bars.map((b, k) => ({
      type: "bar", name: plain(short(b.name, 34)), x: spec.categories.map((_, c) => c), y: b.values.map((v) => v.value), marker: { color: k === palette.length && spec.bars.length === k + 1 ? color("--line") : tint(k) },
      error_y: { visible: !stacked, type: "data", symmetric: false, array: arm(b, "high"), arrayminus: arm(b, "low"), color: color("--ink"), thickness: 1.5 },
      customdata: b.values.map((_, c) => plain(words(b, c))), hovertemplate: "%{customdata}<extra></extra>" }));
    const last = spec.categories.length - 1, levels = spec.levels.map(across(-0.6, last + 0.6));
    Plotly.react(plot, [...traces, ...levels], framed(plot, {
      bargap: stacked ? 0.3 : 0.45, barmode: stacked ? "stack" : "group", xaxis: { ...lines(), range: [-0.6, last + 0.6], tickvals: spec.categories.map((_, c) => c), ticktext: spec.categories.map(plain), showgrid: false },
      yaxis: titled(lines(), spec.y) }), QUIET);
    listen(plot, ({ points: [p] }) => say(words(spec.bars[p.curveNumber], p.pointNumber)));
  }

  function boxes(plot, spec, say) {
    const words = (b) => `${b.name}: median ${shown(b.median)}, middle half ${shown(b.quarter)} to ${shown(b.three_quarters)}`;
    const traces = spec.boxes.map((b, k) => ({ type: "box", x: [k], lowerfence: [b.low], q1: [b.quarter], median: [b.median], q3: [b.three_quarters], upperfence: [b.high],
                                               marker: { color: tint(k) }, name: plain(b.name), showlegend: false }));
    Plotly.react(plot, traces, framed(plot, { showlegend: false, xaxis: { ...lines(), tickvals: spec.boxes.map((_, k) => k), ticktext: spec.boxes.map((b) => plain(short(b.name, 18))), showgrid: false },
                                              yaxis: titled(lines(), spec.y) }), QUIET);
    listen(plot, ({ points: [p] }) => say(words(spec.boxes[p.curveNumber])));
  }

  // ---- heads: those of two layers, then what two of them attend to

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const menu = (box, label, names, at, onChange) => {
    const select = document.createElement("select"), wrap = document.createElement("label");
    names.forEach((name, k) => select.add(new Option(short(name, 40), k)));
    select.value = at;
    select.addEventListener("change", () => onChange(Number(select.value)));
    wrap.append(label + " ", select);
    box.querySelector(".controls").append(wrap);
    return select;
  };

  function heads(figure, say) {
    const { box, plot, spec } = figure, names = spec.layers.names;
    if (!figure.cells) {
      figure.cells = new Uint16Array(bytes(spec.cells).buffer);
      figure.starts = spec.heads.reduce((s, n) => [...s, s[s.length - 1] + n], [0]);
      figure.open = figure.open || [0, spec.layers.groups[0].stop - 1];
      figure.menus = ["Rows", "Columns"].map((label, k) => menu(box, label, names, figure.open[k], (v) => { figure.open[k] = v; draw(figure); }));
    }
    const [i, j] = figure.open, total = figure.starts[names.length], [low, high] = spec.range;
    const value = (a, b) => { const v = figure.cells[(figure.starts[i] + a) * total + figure.starts[j] + b]; return v === 65535 ? null : low + (v / 65534) * (high - low); };
    const axis = (k) => { const t = [...Array(spec.heads[k]).keys()].map((h) => String(h + 1)); return { names: t.map((h) => `${names[k]} head ${h}`), ticks: t, groups: [{ name: names[k], start: 0, stop: t.length }] }; };
    figure.inner = { title: "", rows: axis(i), columns: axis(j), range: spec.range, unit: spec.unit, joint: " × ", missing: "no value", hatched: true, beside: {}, numbers: true,
                     values: axis(i).ticks.map((_, a) => axis(j).ticks.map((_, b) => value(a, b))) };
    heats(plot, [figure.inner], say);
    plot.on("plotly_click", ({ points: [p] }) => openPatterns(figure.starts[i] + p.y, figure.starts[j] + p.x));
  }

  /** Layers by name, as a cell of the layers' heatmap gives them. */
  function openHeads(row, column) {
    figures.filter((f) => f.spec.type === "Heads").forEach((f) => {
      const at = [row, column].map((name) => f.spec.layers.names.indexOf(name));
      if (at.includes(-1)) return;
      f.open = at;
      (f.menus || []).forEach((m, k) => { m.value = at[k]; });
      draw(f);
      if (!f.box.hidden) f.box.scrollIntoView({ behavior: "smooth", block: "nearest" });
    });
  }

  function openPatterns(first, second) {
    figures.filter((f) => f.spec.type === "Patterns").forEach((f) => {
      f.open = [first, second];
      f.menus.forEach((m, k) => { m.value = f.open[k]; });
      draw(f);
      f.box.scrollIntoView({ behavior: "smooth", block: "nearest" });
    });
  }

  function patterns(figure, say) {
    const { box, plot, spec } = figure;
    if (!figure.menus) {
      figure.open = [spec.first, spec.second];
      figure.sentence = 0;
      figure.menus = ["Left", "Right"].map((label, k) => menu(box, label, spec.heads, figure.open[k], (v) => { figure.open[k] = v; draw(figure); }));
      menu(box, "Sentence", spec.sentences.map((s) => `${s.words.length} words: ${s.words.join(" ")}`), 0, (v) => { figure.sentence = v; draw(figure); });
    }
    const s = spec.sentences[figure.sentence], [n, m] = [s.words.length, s.targets.length];
    s.weights = s.weights || bytes(s.cells);
    const grid = (head) => s.words.map((_, a) => s.targets.map((_, b) => s.weights[(head * n + a) * m + b] / 255));
    /** A word that comes again is another category: marked by blanks of no width. */
    const once = (words) => words.map((w, k) => plain(short(w, 14)) + "\u200b".repeat(words.slice(0, k).filter((v) => v === w).length));
    const [rows, columns] = [once(s.words), once(s.targets)], both = figure.open.map(grid), most = Math.max(0.05, ...both.flat(2));
    const wide = Math.min(room(plot), 1180), side = narrow() ? wide - 110 : wide / 2 - 110, tall = Math.min(side * Math.max(0.5, Math.min(1, n / m)), 640) + 110;
    const words = (k, a, b) => `${spec.heads[figure.open[k]]}: ${s.words[a]} → ${s.targets[b]} = ${number(both[k][a][b], 3)}`;
    const stacked = narrow(), layout = { ...look(), dragmode: "zoom", width: wide, height: (stacked ? 2 : 1) * tall + 40, margin: { l: 80, r: 10, t: 30, b: 80 }, annotations: [],
      coloraxis: { cmin: 0, cmax: most, colorscale: scale.map((c, k) => [k / (scale.length - 1), c]), showscale: false } };
    const traces = both.map((z, k) => {
      const id = k ? "2" : "", x = stacked ? [0, 1] : [k ? 0.56 : 0, k ? 1 : 0.44], y = stacked ? [k ? 0 : 0.58, k ? 0.42 : 1] : [0, 1];
      const axis = { type: "category", tickfont: { size: 10, color: color("--muted") }, showgrid: false, zeroline: false, automargin: false };
      layout["xaxis" + id] = { ...axis, domain: x, anchor: "y" + id, tickangle: -60 };
      layout["yaxis" + id] = { ...axis, domain: y, anchor: "x" + id, autorange: "reversed" };
      layout.annotations.push({ text: `<b>${plain(spec.heads[figure.open[k]])}</b>`, showarrow: false, xref: "paper", yref: "paper", x: x[0], y: y[1], xanchor: "left", yanchor: "bottom", font: { size: 13, color: color("--ink") } });
      return { type: "heatmap", z, x: columns, y: rows, xaxis: "x" + id, yaxis: "y" + id, coloraxis: "coloraxis",
               customdata: z.map((row, a) => row.map((_, b) => plain(words(k, a, b)))), hovertemplate: "%{customdata}<extra></extra>" };
    });
    Plotly.react(plot, traces, layout, QUIET);
    listen(plot, ({ points: [p] }) => say(words(p.curveNumber, rows.indexOf(p.y), columns.indexOf(p.x))));
  }

  function listen(plot, onHover) {
    plot.removeAllListeners("plotly_hover");
    plot.on("plotly_hover", onHover);
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", onHover);
  }

  // ---- values as a table

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

  function tables(figure) {
    const { spec, view } = figure;
    const grid = (h) => table("row × column", h.columns.names, h.rows.names, (i, j) => known(h.values[i][j]) ? shown(h.values[i][j], h.low && h.low[i][j], h.high && h.high[i][j]) : "–");
    if (spec.type === "Heatmap") return [grid(crop(spec, view))];
    if (spec.type === "Panels") return spec.panels.map(grid);
    if (spec.type === "Heads") return [grid(figure.inner)];
    if (spec.type === "Patterns") return [];
    if (["Bars", "Stacks"].includes(spec.type)) return [table("", spec.bars.map((b) => b.name), spec.categories, (i, j) => shown(spec.bars[j].values[i].value, spec.bars[j].values[i].low, spec.bars[j].values[i].high))];
    if (spec.type === "Boxes") return [table("", ["low", "quarter", "median", "three_quarters", "high"], spec.boxes.map((b) => b.name), (i, j) => shown(Object.values(spec.boxes[i])[j + 1]))];
    const layers = [...new Set(spec.lines.flatMap((s) => s.layers))].sort((a, b) => a - b);
    return [table(spec.x.split(" ")[0], spec.lines.map((s) => s.name), layers.map(String), (i, j) => {
      const s = spec.lines[j], k = s.layers.indexOf(layers[i]);
      return k < 0 || !known(s.values[k]) ? "–" : shown(s.values[k], s.low && s.low[k], s.high && s.high[k]);
    })];
  }

  // ---- the page

  function draw(figure) {
    const { box, plot, spec, view } = figure;
    if (box.hidden) return;
    const said = box.querySelector(".readout"), say = (text) => { said.textContent = text; said.classList.remove("idle"); };
    if (spec.type === "Heatmap") {
      const shownPart = crop(spec, view);
      heats(plot, [shownPart], say);
      plot.on("plotly_click", ({ points: [p] }) => openHeads(shownPart.rows.names[p.y], shownPart.columns.names[p.x]));
    } else if (spec.type === "Heads") heads(figure, say);
    else if (spec.type === "Patterns") patterns(figure, say);
    else if (spec.type === "Panels") heats(plot, spec.panels, say);
    else if (["Curves", "Sizes"].includes(spec.type)) curves(plot, spec, say);
    else if (["Bars", "Stacks"].includes(spec.type)) bars(plot, spec, say);
    else boxes(plot, spec, say);
    const values = box.querySelector(".values");
    if (values.open) values.querySelector(".scroll").replaceChildren(...tables(figure));
  }
  const drawAll = () => figures.forEach(draw);

  /** A heatmap of several models can show two of them alone; the choice holds for the same picture under other switches. */
  function addViews(figure) {
    const { rows, columns } = figure.spec;
    if (figure.spec.type !== "Heatmap" || rows.groups.length * columns.groups.length < 2) return;
    const label = figure.box.querySelector(".controls").appendChild(document.createElement("label")), select = document.createElement("select");
    label.append("View ", select);
    const option = (value, text) => select.add(new Option(text, value));
    option("all", "All models");
    rows.groups.forEach((a, i) => columns.groups.forEach((b, j) => option(`${i},${j}`, a.name === b.name ? short(a.name, 40) : `${short(a.name, 30)} × ${short(b.name, 30)}`)));
    select.className = "view";
    select.addEventListener("change", () => {
      figures.filter((f) => f.box.parentElement === figure.box.parentElement && f.spec.type === "Heatmap").forEach((f) => {
        f.view = select.value;
        f.box.querySelector(".view").value = select.value;
        draw(f);
      });
    });
  }

  function applySwitches() {
    const chosen = Object.fromEntries(all("[data-switch]").map((s) => [s.dataset.switch, s.value]));
    all("[data-when]").forEach((box) => { box.hidden = !Object.entries(JSON.parse(box.dataset.when)).every(([k, v]) => chosen[k] === v); });
  }

  function filterStatements() {
    const pressed = all("#filter button[aria-pressed='true']").map((b) => b.dataset.verdict), words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = all(".statements tbody tr");
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = (pressed.length > 0 && !pressed.includes(row.dataset.verdict)) || !words.every((w) => text.includes(w));
    });
    const left = rows.filter((row) => !row.hidden).length;
    $("matches").textContent = left === rows.length ? "" : `${left} of ${rows.length}`;
  }

  /** A link to a statement opens it, also when the filter hides it; one to something folded away unfolds it. */
  function follow() {
    const target = location.hash && $(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) {
      all("#filter button").forEach((b) => b.setAttribute("aria-pressed", "false"));
      $("find").value = "";
      filterStatements();
    }
    const fold = target.matches("details") ? target : target.querySelector(":scope details:not(.values, .fold)");
    if (fold) fold.open = true;
    target.scrollIntoView();
  }

  figures.forEach(addViews);
  all(".readout").forEach((r) => r.classList.add("idle"));
  drawAll();
  figures.forEach((f) => f.box.querySelector(".values").addEventListener("toggle", () => draw(f)));
  if ($("switches")) {
    $("switches").hidden = false;
    all("[data-switch]").forEach((s) => s.addEventListener("change", () => { applySwitches(); drawAll(); }));
  }
  if ($("filter")) {
    $("filter").hidden = false;
    $("find").addEventListener("input", filterStatements);
    all("#filter button").forEach((b) => b.addEventListener("click", () => {
      b.setAttribute("aria-pressed", String(b.getAttribute("aria-pressed") !== "true"));
      filterStatements();
    }));
  }
  all("[data-search]").forEach((input) => {
    const bar = input.closest(".bar"), rows = all("tbody tr", bar.parentElement), texts = rows.map((row) => row.textContent.toLowerCase());
    bar.hidden = false;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), fits = texts.map((text) => words.every((w) => text.includes(w)));
      rows.forEach((row, k) => { row.hidden = !fits[k]; });
      bar.querySelector(".note").textContent = words.length ? `${fits.filter(Boolean).length} of ${rows.length}` : "";
    });
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; drawAll(); } });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const folds = all("details.fold, .statements details");
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("print");
    folds.forEach((d) => { d.dataset.was = d.open; d.open = true; });
    drawAll();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("print");
    folds.forEach((d) => { d.open = d.dataset.was === "true"; });
    drawAll();
  });
  window.addEventListener("hashchange", follow);
  follow();
})();
