"use strict";
// Charts over the steps: one zoom and one cursor for all of them.
const Charts = (() => {
  const all = [];
  let view = [0, 1], whole = [0, 1], onZoom = () => {};

  const probe = document.createElement("i");
  const color = (name) => {
    probe.style.color = `var(--${name})`;
    if (!probe.isConnected) { probe.hidden = true; document.body.append(probe); }
    return getComputedStyle(probe).color;
  };

  const seconds = (value) => {
    if (value == null) return "—";
    if (value >= 1) return `${figures(value)} s`;
    return value >= 1e-3 ? `${figures(value * 1e3)} ms` : `${Math.round(value * 1e6)} us`;
  };
  const figures = (value) => {
    if (value === 0) return "0";
    const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
    return value.toLocaleString("en", { minimumFractionDigits: Math.min(6, Math.max(0, 3 - whole)), maximumFractionDigits: Math.min(6, Math.max(0, 3 - whole)) });
  };
  const percent = (value) => (value == null ? "—" : `${value > 0 && value < 9.995e-4 ? (value * 100).toPrecision(2) : (value * 100).toFixed(1)}%`);
  const speed = (tera) => {
    if (tera == null) return "—";
    const [unit, part] = [["TFLOPS", 1], ["GFLOPS", 1e-3], ["MFLOPS", 1e-6], ["kFLOPS", 1e-9]].find(([, part]) => tera >= part) || ["FLOPS", 1e-12];
    return `${figures(tera / part)} ${unit}`;
  };
  const tick = (value) => Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });
  const units = {
    seconds: { tick: (v) => (v === 0 ? "0" : v >= 1 ? `${tick(v)} s` : v >= 1e-3 ? `${tick(v * 1e3)} ms` : `${tick(v * 1e6)} us`), say: seconds },
    share: { tick: (v) => `${tick(v * 100)}%`, say: percent },
    GB: { tick: (v) => `${tick(v)} GB`, say: (v) => (v == null ? "—" : `${figures(v)} GB`) },
    TFLOPS: { tick: speed, say: speed },
  };

  // The range of most points, so that a few long steps do not flatten the rest.
  const usual = (values) => {
    const known = values.filter((v) => v != null).sort((a, b) => a - b);
    if (!known.length) return 1;
    return known[Math.floor((known.length - 1) * 0.98)] || known[known.length - 1] || 1;
  };

  function zoom(low, high) {
    low = Math.max(whole[0], Math.min(low, high)); high = Math.min(whole[1], Math.max(low, high));
    if (!(high > low)) { low = Math.max(whole[0], low - 0.5); high = low + 1; }
    if (low === view[0] && high === view[1]) return;
    view = [low, high];
    for (const plot of all) plot.setScale("x", { min: low, max: high });
    onZoom(low, high);
  }

  const axis = (extra) => ({
    stroke: () => color("soft"), font: "11.5px system-ui, sans-serif",
    grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false }, gap: 6, ...extra,
  });

  // One chart: `lines` are drawn over `x`, each {values, color, width, fill}; `say` makes the text at the cursor.
  function chart(figure, { x, lines, bands = [], unit, height, range, say, draw, hit, rows }) {
    const place = document.createElement("div");
    place.className = "plot";
    const tip = document.createElement("div");
    tip.className = "tip";
    figure.append(place, tip);
    const form = units[unit] || { tick: String, say: String };
    const options = {
      width: place.clientWidth || 600, height,
      cursor: {
        sync: { key: "steps", setSeries: false }, drag: { x: true, y: false, setScale: true }, y: false,
        bind: { dblclick: () => () => { zoom(...whole); return null; } },
      },
      legend: { show: false },
      padding: [8, 30, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: { range: () => (typeof range === "function" ? range() : range) } },
      series: [{}, ...lines.map((line) => ({
        stroke: line.color && (() => color(line.color)), width: line.width ?? 1.5, fill: line.fill && (() => color(line.fill)),
        points: line.points ? { show: true, size: 8, fill: () => color(line.points), stroke: () => color("card") } : { show: x.length < 3, size: 5 },
        paths: line.points ? () => null : undefined, spanGaps: false, dash: line.dash,
      }))],
      bands: bands.map((band) => ({ series: band.series, fill: () => color(band.fill) })),
      axes: [
        axis({ size: rows ? 6 : 26, values: (_, ticks) => ticks.map((v) => (!rows && Number.isInteger(v) ? v.toLocaleString("en") : "")) }),
        axis({ size: 84, values: (_, ticks) => ticks.map((v) => (rows ? rows[v] : form.tick(v))), ...(rows ? { splits: () => rows.map((_, row) => row) } : {}) }),
      ],
      hooks: {
        setScale: [(plot, key) => { if (key === "x" && plot.ready) zoom(plot.scales.x.min, plot.scales.x.max); }],
        draw: draw ? [draw] : [],
        setCursor: [(plot) => {
          const { idx, left, top } = plot.cursor;
          const text = left == null || left < 0 || idx == null ? "" : (hit && hit(plot, left, top)) || say(idx, form.say);
          const own = plot.over.matches(":hover");
          tip.textContent = text || "";
          tip.style.display = text && own ? "block" : "none";
          if (!text) return;
          const box = figure.getBoundingClientRect(), over = plot.over.getBoundingClientRect();
          const from = over.left - box.left + left;
          tip.style.left = `${Math.max(4, from + tip.offsetWidth + 20 > box.width ? from - tip.offsetWidth - 12 : from + 12)}px`;
          tip.style.top = `${over.top - box.top + 6}px`;
        }],
      },
    };
    const plot = new uPlot(options, [x, ...lines.map((line) => line.values)], place);
    plot.setScale("x", { min: view[0], max: view[1] });
    requestAnimationFrame(() => { plot.ready = true; });
    new ResizeObserver(() => { if (place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height }); }).observe(place);
    plot.over.addEventListener("mouseleave", () => { tip.style.display = "none"; });
    all.push(plot);
    return plot;
  }

  return {
    chart, zoom, color, seconds, percent, figures, usual, units,
    begin(first, last, zoomed) { whole = first < last ? [first, last] : [first - 0.5, last + 0.5]; view = [...whole]; onZoom = zoomed; },
    reset: () => zoom(...whole),
    // Set the width of all charts, or let them follow the page again.
    fit: (most = Infinity) => all.forEach((plot) => plot.setSize({ width: Math.min(most, plot.root.parentNode.clientWidth || most), height: plot.height })),
    redraw: () => all.forEach((plot) => plot.redraw(false, true)),
    get view() { return view; },
  };
})();
