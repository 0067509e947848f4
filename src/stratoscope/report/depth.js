/** The two pictures of a depth result, on its own page and on that of a study. */
(() => {
  const { $, digits, color, result } = plots;
  const depth = result.depth;
  if (!depth) return;
  const TINTS = { UNTUNED: 2, TUNED: 0, TUNEDORIG: 1 };

  function spanText(i, j) {
    const blocks = i === j ? `block ${i + 1}` : `blocks ${i + 1}-${j + 1}`, value = depth.skip.values[i][j];
    if (value === null) return j < i ? `first ${i + 1}, last ${j + 1}: not a span` : `without ${blocks}: no value`;
    const change = (value - depth.full) * 100, same = depth.skip.agreement && depth.skip.agreement[i][j];
    return `without ${blocks} = ${digits(value)}, ${change > 0 ? "+" : change < 0 ? "−" : "±"}${Math.abs(change).toFixed(1)} points`
      + (typeof same === "number" ? `, ${(same * 100).toFixed(1)} % predicted as before` : "");
  }

  plots.keepDrawn(() => {
    if (depth.curves.length) {
      plots.curves($("truncation"), depth.curves, { title: depth.metric, lines: depth.lines, height: 400,
                                                    tints: depth.curves.map((c) => TINTS[c.name]) });
    }
    if (!depth.skip) return;
    const names = depth.skip.values.map((_, k) => String(k + 1));
    const outline = (_, xref, yref) => depth.skip.little.map(([i, j]) => ({
      type: "rect", xref, yref, x0: j - 0.42, x1: j + 0.42, y0: i - 0.42, y1: i + 0.42, line: { color: "#1b2030", width: 1 } }));
    const ask = "Point at a cell to read its value.";
    plots.heats($("skip"), [{ title: "", x: names, y: names, xname: "last block skipped", yname: "first block skipped",
                              values: depth.skip.values, said: spanText }],
                { range: depth.skip.range, bar: depth.metric, back: color("--card"), most: 40, shapes: outline,
                  onHover: (text) => { $("skip-readout").textContent = text; } });
    $("skip-readout").textContent = ask;
  });
})();
