"use strict";
// The page is built from the data alone, as text: nothing in a journal is ever read as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

const STAGE_COLORS = { data: "s0", forward: "s1", backward: "s2", optimizer: "s3", communication: "s6", gc: "s4", other: "s5" };
const WALL_COLORS = { startup: "s5", "first step": "s6", "FLOP counting": "s0", steps: "s2", evaluation: "s3", checkpoint: "s4", "own work": "warn", other: "s7" };
const PART_COLORS = ["s2", "s1", "s3", "s0", "s4", "s6", "s5", "s7"];
const LANE_COLORS = { evaluation: "s3", checkpoint: "s6", restart: "warn", "FLOP count": "faint", collection: "s4", straggler: "s0", stall: "warn" };
const chip = (color, line) => el("i", { class: line ? "line" : "", style: { background: `var(--${color})` } });
const key = (...pairs) => el("span", { class: "key" }, ...pairs.map(([name, color, line]) => el("span", {}, chip(color, line), name)));
const section = (title, ...parts) => {
  const shown = parts.filter((part) => part != null);
  if (shown.length) page.append(el("section", {}, title && el("h2", {}, title), ...shown));
};

// No line ends between a number and its unit.
const joined = (text) => text.replace(/(\d) (?=(us|ms|s|B|kB|MB|GB)\b)/g, "$1\u00a0");

function table(name, options = {}) {
  const found = data.tables[name];
  if (!found) return null;
  // a column that is empty in all rows is left out
  const filled = found.columns.map((_, place) => found.rows.some((row) => row[place])), shown = (cells) => cells.filter((_, place) => filled[place]);
  const columns = shown(found.columns);
  const inside = (text, heading, kind) => (kind === "code" && text ? el("code", {}, text) : heading.endsWith("step") && data.steps && kind === "number" ? stepButton(text) : joined(text));
  const cell = (text, [heading, kind]) => el("td", { class: kind, "data-label": heading }, inside(text, heading, kind));
  const body = el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map(([heading, kind]) => el("th", { class: kind, scope: "col" }, heading)))),
    el("tbody", {}, ...found.rows.map((row) => el("tr", {}, ...shown(row).map((text, place) => cell(text, columns[place]))))));
  const head = [el("h3", {}, found.title), found.note ? el("span", { class: "said" }, found.note) : null].filter(Boolean);
  const inner = found.rows.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": found.title }, body) : "";
  if (options.folded) return el("details", { class: "table" }, el("summary", {}, el("h3", { style: { display: "inline" } }, found.title)), inner);
  return el("div", { class: `table ${options.class || ""}` }, el("header", {}, ...head), inner);
}

// The number of a step, which zooms all charts to its neighbours.
function stepButton(text) {
  const step = Number(text.replaceAll(",", "")), around = Math.max(20, 2 * data.steps.width);
  const look = () => { Charts.zoom(step - around, step + around); document.getElementById("steps").scrollIntoView(); };
  return step >= data.steps.first && step <= data.steps.last ? el("button", { class: "step", type: "button", title: "Zoom to this step", on: { click: look } }, text) : text;
}

const pair = (...parts) => (parts.some(Boolean) ? el("div", { class: "two" }, ...parts) : null);

function figure(title, legend, text) {
  return el("figure", { role: "group", "aria-label": text },
    el("figcaption", {}, el("h3", {}, title), legend));
}

function asTable(into, headings, rows) {
  const most = 24, stride = Math.max(1, Math.ceil(rows.length / most));
  const build = () => el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...headings.map((heading) => el("th", { class: "number", scope: "col" }, heading)))),
    el("tbody", {}, ...rows.filter((_, place) => place % stride === 0).map((row) => el("tr", {}, ...row.map((text) => el("td", { class: "number" }, text)))))));
  const folded = el("details", { class: "data" }, el("summary", {}, stride > 1 ? `As a table: one point in ${stride}` : "As a table"));
  folded.addEventListener("toggle", () => { if (folded.open && folded.children.length === 1) folded.append(build()); });
  into.append(folded);
}

function bar(title, found, colors) {
  if (!found) return null;
  const made = figure(title, el("span", { class: "said" }, found.title), found.text);
  const tint = (part, place) => `var(--${(colors && colors[part.name]) || PART_COLORS[place % PART_COLORS.length]})`;
  made.append(
    el("div", { class: "stack", role: "img", "aria-label": found.text }, ...found.parts.map((part, place) =>
      el("span", { title: `${part.name} ${part.value}`, style: { width: `${part.share * 100}%`, background: tint(part, place) } }))),
    el("ul", { class: "parts" }, ...found.parts.map((part, place) =>
      el("li", {}, el("i", { style: { background: tint(part, place) } }), part.name, el("b", {}, part.value)))));
  return made;
}

// ---- head
document.title = `${data.title.name} · perf_callbacks report`;
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
const toggle = el("button", { type: "button" });
const nameToggle = () => { toggle.textContent = theme() === "dark" ? "Light" : "Dark"; };
const paint = () => { nameToggle(); Charts.redraw(); drawHeat(); };
let drawHeat = () => {};
toggle.addEventListener("click", () => { document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark"; paint(); });
dark.addEventListener("change", paint);
let before;
const foldedTables = () => document.querySelectorAll("details.table");
addEventListener("beforeprint", () => { for (const one of foldedTables()) one.open = true; before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; paint(); });
addEventListener("afterprint", () => { for (const one of foldedTables()) one.open = false; if (before) document.documentElement.dataset.theme = before; else delete document.documentElement.dataset.theme; paint(); });
page.append(
  el("div", { class: "top" }, el("span", {}, el("b", {}, "perf_callbacks"), " report"), toggle),
  el("h1", {}, data.verdict || "No verdict on this run."),
  el("p", { class: "details" }, el("b", {}, data.title.name), ` · ${data.title.details} · started ${data.title.started} · `, el("span", { class: "mono" }, data.title.run)),
  ...(data.notes.length ? [el("ul", { class: "notes" }, ...data.notes.map((note) => el("li", {}, note)))] : []),
  el("dl", { class: "tiles" }, ...(data.figures || []).map((one) => el("div", {},
    el("dt", {}, one.name), el("dd", { class: "value" }, one.value), el("dd", { class: "note" }, joined(one.note))))));

section(null, table("findings", { class: "findings wordy" }), table("stragglers", { class: "wordy" }), table("stalls", { class: "wordy" }));

// ---- over the steps
const steps = data.steps;
const at = (place) => {
  const middle = steps.x[place], half = (steps.width - 1) / 2;
  return steps.width === 1 ? `step ${middle.toLocaleString("en")}` : `steps ${(middle - half).toLocaleString("en")} to ${Math.min(steps.last, middle + half).toLocaleString("en")}`;
};

function timeChart() {
  const made = figure("Step time", key(["mean", "accent", true], ["fastest to slowest", "band"], ["slow step", "second"]), steps.text);
  page.lastChild.append(made);
  // a few long steps would flatten all others: at first the scale fits the usual steps
  const slowest = Math.max(...steps.outliers.map((one) => one[1]), ...steps.most.filter((v) => v != null)) * 1.05;
  const usual = Math.min(slowest, Math.max(Math.min(Charts.usual(steps.most) * 1.25, Charts.usual(steps.mean) * 3), Charts.usual(steps.mean) * 1.5));
  let high = usual, plot = null;
  if (slowest > usual) {
    const all = el("button", { type: "button", "aria-pressed": "false" }, "Scale to the slowest");
    all.addEventListener("click", () => { high = high === usual ? slowest : usual; all.setAttribute("aria-pressed", String(high !== usual)); plot.redraw(true, true); });
    made.firstChild.append(el("span", { class: "tools" }, all));
  }
  const spot = (plot, [step, value], ratio) => [plot.valToPos(step, "x", ratio), plot.valToPos(Math.min(value, high), "y", ratio)];
  plot = Charts.chart(made, {
    x: steps.x, unit: "seconds", height: 250, range: () => [0, high],
    lines: [{ values: steps.most, width: 0 }, { values: steps.least, width: 0 }, { values: steps.mean, color: "accent" }],
    bands: [{ series: [1, 2], fill: "band" }],
    say: (place, say) => `${at(place)}\nmean ${say(steps.mean[place])}\n${say(steps.least[place])} to ${say(steps.most[place])}`,
    hit: (plot, left, top) => {
      const near = steps.outliers.find((one) => { const [x, y] = spot(plot, one, false); return Math.hypot(x - left, y - top) < 7; });
      return near && `step ${near[0].toLocaleString("en")}: ${Charts.seconds(near[1])}\nrank ${near[2]}${near[3] ? `\nexcluded: ${near[3]}` : ""}`;
    },
    draw: (plot) => {
      const { ctx } = plot, scale = devicePixelRatio, [low, far] = Charts.view;
      ctx.save();
      ctx.fillStyle = Charts.color("second");
      for (const one of steps.outliers) {
        if (one[0] < low || one[0] > far) continue;
        const [x, y] = spot(plot, one, true), size = 3 * scale;
        ctx.beginPath();
        if (one[1] > high) { ctx.moveTo(x, y - size); ctx.lineTo(x + size, y + size); ctx.lineTo(x - size, y + size); } else ctx.arc(x, y, size * 0.8, 0, 7);
        ctx.fill();
      }
      ctx.restore();
    },
  });
  asTable(made, ["step", "mean", "fastest", "slowest"], steps.x.map((x, place) => [x.toLocaleString("en"), ...["mean", "least", "most"].map((name) => Charts.seconds(steps[name][place]))]));
}

function marksChart() {
  if (!data.marks) return;
  const { lanes, marks } = data.marks;
  const made = figure("Events", null, data.marks.text);
  page.lastChild.append(made);
  const x = [...new Set(marks.map((mark) => mark[0]))];
  const place = new Map(x.map((step, index) => [step, index]));
  const lines = lanes.map((lane, row) => ({ values: x.map(() => null), points: LANE_COLORS[lane] || "s0", row }));
  const said = x.map(() => []);
  for (const [step, lane, text] of marks) { lines[lane].values[place.get(step)] = lanes.length - 1 - lane; said[place.get(step)].push(text); }
  Charts.chart(made, {
    x, lines, rows: [...lanes].reverse(), height: 20 * lanes.length + 22, range: [-0.6, lanes.length - 0.4],
    say: (index) => [`step ${x[index].toLocaleString("en")}`, ...said[index].slice(0, 4), ...(said[index].length > 4 ? [`and ${said[index].length - 4} more`] : [])].join("\n"),
  });
  asTable(made, ["step", "event", "what"], marks.map(([step, lane, text]) => [step.toLocaleString("en"), lanes[lane], text]));
}

function rateChart() {
  const rate = data.rate;
  if (!rate) return;
  const name = rate.unit === "share" ? "MFU" : "TFLOPS";
  const made = figure(name, key([name, "accent", true], ["lowest to highest", "band"]), rate.text);
  page.lastChild.append(made);
  const high = Math.min(Math.max(...rate.most.filter((v) => v != null)) * 1.08, Charts.usual(rate.most) * 1.6);
  Charts.chart(made, {
    x: steps.x, unit: rate.unit, height: 180, range: [0, high],
    lines: [{ values: rate.most, width: 0 }, { values: rate.least, width: 0 }, { values: rate.mean, color: "accent" }],
    bands: [{ series: [1, 2], fill: "band" }],
    say: (place, say) => `${at(place)}\n${name} ${say(rate.mean[place])}\n${say(rate.least[place])} to ${say(rate.most[place])}`,
  });
  asTable(made, ["step", name, "lowest", "highest"], steps.x.map((x, place) => [x.toLocaleString("en"), ...["mean", "least", "most"].map((one) => Charts.units[rate.unit].say(rate[one][place]))]));
}

function stagesChart() {
  const stages = data.stages;
  if (!stages) return;
  const made = figure("Stages of a step", key(...stages.names.map((name, place) => [`${name} ${Charts.percent(stages.totals[place])}`, STAGE_COLORS[name] || "s6"])), stages.text);
  page.lastChild.append(made);
  const sums = steps.x.map(() => 0);
  const piled = stages.shares.map((values) => values.map((value, place) => (value == null ? null : (sums[place] += value))));
  Charts.chart(made, {
    x: steps.x, unit: "share", height: 190, range: [0, 1],
    lines: piled.map((values, place) => ({ values, width: 0, fill: STAGE_COLORS[stages.names[place]] || "s6" })).reverse(),
    say: (place, say) => [at(place), ...stages.names.map((name, row) => `${name} ${say(stages.shares[row][place])}`)].join("\n"),
  });
  asTable(made, ["step", ...stages.names], steps.x.map((x, place) => [x.toLocaleString("en"), ...stages.shares.map((values) => Charts.percent(values[place]))]));
}

function useCharts(place) {
  for (const use of data.use || []) {
    const made = figure(`${use.title} over the steps`, key(...use.names.map((name, place) => [name, ["accent", "second"][place], true])), use.text);
    place.append(made);
    const high = use.unit === "share" ? 1 : Math.max(...use.values.flat().filter((v) => v != null)) * 1.15 || 1;
    Charts.chart(made, {
      x: use.x, unit: use.unit, height: 160, range: [0, high],
      lines: use.values.map((values, place) => ({ values, color: ["accent", "second"][place] })),
      say: (place, say) => [`step ${use.x[place].toLocaleString("en")}`, ...use.names.map((name, row) => `${name} ${say(use.values[row][place])}`)].join("\n"),
    });
    asTable(made, ["step", ...use.names], use.x.map((x, place) => [x.toLocaleString("en"), ...use.values.map((values) => Charts.units[use.unit].say(values[place]))]));
  }
}

if (steps) {
  const [from, to] = ["First step shown", "Last step shown"].map((label) => el("input", { type: "number", "aria-label": label, min: steps.first, max: steps.last }));
  const hint = el("p", { class: "said" });
  const say = (low, high) => {
    from.value = Math.round(low); to.value = Math.round(high);
    const few = steps.width > 1 && high - low < 100 * steps.width;
    hint.replaceChildren(...(few ? [`A point is ${steps.width.toLocaleString("en")} steps. To draw each step: `, el("code", {}, `perf-callbacks report … --steps ${from.value}-${to.value}`)] : []));
    drawHeat();
  };
  Charts.begin(steps.first, steps.last, say);
  for (const input of [from, to]) input.addEventListener("change", () => Charts.zoom(Number(from.value), Number(to.value)));
  const tools = el("div", { class: "tools" }, "Steps", from, "to", to, el("button", { type: "button", on: { click: Charts.reset } }, "All"), el("span", {}, "or drag over a chart"));
  page.append(el("section", { id: "steps" }, el("div", { class: "bar-head" }, el("h2", {}, "Over the steps"), tools), hint));
  say(...Charts.view);
  timeChart(); marksChart(); rateChart(); stagesChart();
}

// ---- where the time went
if (data.account || data.peak) section("Where time and FLOPs went", el("div", { class: "two" }, ...[bar("Wall time", data.account, WALL_COLORS), bar("Peak", data.peak, { "model FLOPs (MFU)": "s2", "recomputation": "s0", unused: "s7" })].filter(Boolean)));

// ---- ranks
function heatMap() {
  const heat = data.heat;
  if (!heat) return null;
  const cell = heat.ranks.length > 24 ? 8 : 16, mean = steps ? steps.mean.filter((v) => v != null).reduce((a, b) => a + b, 0) / Math.max(1, steps.mean.filter((v) => v != null).length) : 1;
  let chosen = heat.names.indexOf(heat.stage);
  const choose = el("select", { "aria-label": "Stage" }, ...heat.names.map((name, place) => el("option", { value: place, ...(place === chosen ? { selected: "" } : {}) }, name === "step" ? "whole step" : name)));
  const made = figure("Ranks over the steps", null, heat.text);
  const legend = el("span", { class: "said" });
  made.firstChild.append(choose, legend);
  const canvas = el("canvas", { class: "heat", role: "img", "aria-label": heat.text }), tip = el("div", { class: "tip" });
  made.append(canvas, tip);
  // its columns lie under the steps of the charts above, and follow their zoom
  const left = 70, right = 30, foot = 18, height = heat.ranks.length * cell + foot;
  const shown = () => (steps ? Charts.view : [heat.first - 0.5, heat.last + 0.5]);
  drawHeat = () => {
    const wide = made.clientWidth - 28, scale = devicePixelRatio || 1, [low, high] = shown(), space = wide - left - right;
    const at = (column) => left + ((heat.first - 0.5 + column * heat.width - low) / (high - low)) * space;
    canvas.width = wide * scale; canvas.height = height * scale; canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(scale, scale);
    ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "middle";
    ctx.save();
    ctx.beginPath(); ctx.rect(left, 0, space, height); ctx.clip();
    heat.excess[chosen].forEach((row, rank) => row.forEach((value, column) => {
      const x = at(column), each = Math.ceil(at(column + 1) - x);
      if (x + each < left || x > wide - right) return;
      ctx.globalAlpha = 1;
      ctx.fillStyle = Charts.color("grid");
      if (value != null) ctx.fillRect(x, rank * cell, each, cell - 1);
      ctx.globalAlpha = Math.min(1, Math.sqrt(Math.max(0, value || 0) / mean / 0.5));
      ctx.fillStyle = Charts.color("heat");
      if (value > 0) ctx.fillRect(x, rank * cell, each, cell - 1);
    }));
    ctx.restore();
    ctx.fillStyle = Charts.color("soft");
    const every = Math.ceil(12 / cell);
    heat.ranks.forEach((rank, row) => { if (row % every === 0) ctx.fillText(`rank ${rank}`, 0, row * cell + cell / 2); });
    ctx.fillText(Math.ceil(low).toLocaleString("en"), left, height - 8);
    const end = `step ${Math.floor(high).toLocaleString("en")}`;
    ctx.fillText(end, wide - right - ctx.measureText(end).width, height - 8);
    legend.replaceChildren("longer than the median rank by 0", el("span", { class: "scale", style: { background: "linear-gradient(to right, var(--grid), var(--heat))" } }), `${Charts.seconds(mean / 2)} or more per step`);
  };
  choose.addEventListener("change", () => { chosen = Number(choose.value); drawHeat(); });
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect(), [low, high] = shown(), share = (event.clientX - box.left - left) / (box.width - left - right);
    const column = Math.floor((low + share * (high - low) - heat.first + 0.5) / heat.width), row = Math.floor((event.clientY - box.top) / cell);
    const value = share >= 0 && share <= 1 ? heat.excess[chosen][row]?.[column] : null;
    tip.style.display = value == null ? "none" : "block";
    if (value == null) return;
    const start = heat.first + column * heat.width;
    tip.textContent = `rank ${heat.ranks[row]}, steps ${start.toLocaleString("en")} to ${Math.min(heat.last, start + heat.width - 1).toLocaleString("en")}\n${heat.names[chosen]} ${value < 0 ? "−" : "+"}${Charts.seconds(Math.abs(value))} over the median rank`;
    const x = event.clientX - made.getBoundingClientRect().left;
    tip.style.left = `${x + 220 > made.clientWidth ? x - 220 : x + 12}px`;
    tip.style.top = `${event.clientY - made.getBoundingClientRect().top + 14}px`;
  });
  canvas.addEventListener("mouseleave", () => { tip.style.display = "none"; });
  new ResizeObserver(() => drawHeat()).observe(made);
  if (heat.left_out) made.append(el("p", { class: "said" }, `${heat.left_out.toLocaleString("en")} more ranks are not drawn: those that exceed the median rank least.`));
  return made;
}
section(data.heat ? "Ranks and slow steps" : "Slow steps", heatMap(), pair(table("worst"), table("ranks")));

// ---- the rest
section("FLOPs", table("products"), pair(table("phases"), table("uncounted")));
const memory = bar("Memory of a step", data.memory);
if (memory || (data.use || []).length) {
  const place = el("div", { class: "two" });
  section("Memory and machine", memory, place);
  useCharts(place);
}
section(null, table("checklist", { class: "wordy" }));
section(null, table("environment", { folded: true }));
page.append(el("footer", {},
  el("p", {}, !steps || steps.width === 1 ? "Each point is one step: the mean of its ranks, and a band from the fastest to the slowest rank." : `Each point is ${steps.width.toLocaleString("en")} steps of all ranks: their mean, and a band from the fastest to the slowest. Neither includes excluded steps: the first step, and steps with a FLOP count, an evaluation or a checkpoint.`),
  el("p", {}, "The slowest steps are drawn one by one; a triangle at the upper edge is a step beyond the scale. Steps that were repeated after a restart are shown as they ran last."),
  el("p", {}, `${data.title.version}. The page needs no network. Charts: uPlot 1.6.32, MIT licence, © 2022 Leon Sorokin.`)));
nameToggle();
