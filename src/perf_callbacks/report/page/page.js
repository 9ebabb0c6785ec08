"use strict";
// The page from top to bottom.
const STAGE_COLORS = { data: "s0", forward: "s1", backward: "s2", optimizer: "s3", communication: "s6", gc: "s4", other: "s5" };
const WALL_COLORS = { startup: "s5", "first step": "s6", "FLOP counting": "s0", steps: "s2", evaluation: "s3", checkpoint: "s4", "own work": "warn", suspended: "second", other: "s7" };
const GOODPUT_COLORS = { productive: "s2", data: "s0", communication: "s6", stragglers: "s1", "rolled back": "warn", stalls: "s4", startup: "s5", "first step": "s1", evaluation: "s3", checkpoint: "s4", downtime: "second", other: "s7" };
const LANE_COLORS = { evaluation: "s3", checkpoint: "s6", restart: "warn", "FLOP count": "faint", profile: "s2", collection: "s4", straggler: "s0", stall: "warn" };

// ---- head
document.title = `${data.title.name} · perf_callbacks report`;
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
const toggle = el("button", { type: "button" });
const nameToggle = () => { toggle.textContent = theme() === "dark" ? "Light" : "Dark"; };
const paint = (wide) => { nameToggle(); Charts.redraw(); drawHeat(wide); };
let drawHeat = () => {};
toggle.addEventListener("click", () => { document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark"; paint(); });
dark.addEventListener("change", () => paint());
// On paper, everything is open and light, and charts are as wide as the page.
let before, opened = [];
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  opened = [...document.querySelectorAll("details.how:not([open]), details.table:not([open])")];
  for (const one of opened) one.open = true;
  Charts.fit(660);
  paint(660);
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
  if (before) document.documentElement.dataset.theme = before; else delete document.documentElement.dataset.theme;
  Charts.fit();
  paint();
});
page.append(
  el("div", { class: "top" }, el("span", {}, el("b", {}, "perf_callbacks"), " report"), toggle),
  el("h1", {}, data.verdict || "No verdict on this run."),
  el("p", { class: "name" }, data.title.name),
  data.title.command ? el("p", { class: "command" }, el("code", {}, data.title.command)) : "",
  el("dl", { class: "facts" }, ...data.title.facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))),
  ...(data.notes.length ? [el("ul", { class: "notes" }, ...data.notes.map((note) => el("li", {}, note)))] : []),
  ...tiles(data.figures || []));

section(null, table("findings", { class: "findings wordy" }), table("stragglers", { class: "wordy" }), table("stalls", { class: "wordy" }));
section(data.other ? "Two runs" : null, table("comparison"), table("differences", { class: "wordy" }));

// ---- over the steps
const steps = data.steps;
const at = (place) => {
  const middle = steps.x[place], half = (steps.width - 1) / 2;
  return steps.width === 1 ? `step ${middle.toLocaleString("en")}` : `steps ${(middle - half).toLocaleString("en")} to ${Math.min(steps.last, middle + half).toLocaleString("en")}`;
};

const bandOf = (found) => (found.names.band ? [{ values: found.most, width: 0 }, { values: found.least, width: 0 }] : []);

function timeChart() {
  const { names } = steps, other = data.other ? data.other.mean : [];
  const made = figure("Step time", key([data.other ? `A: ${names.line}` : names.line, "accent", true], names.band && [names.band, "band"],
    steps.outliers.length && ["slow step", "second"], data.other && ["B", "s4", true]), [steps.text, data.other?.text].filter(Boolean).join(" "), page.lastChild);
  // A few long steps would flatten the line of all steps, so at first the scale fits the usual steps.
  const slowest = Math.max(...steps.outliers.map((one) => one[1]), ...[...steps.most, ...other].filter((v) => v != null)) * 1.05;
  const mean = Math.max(Charts.usual(steps.mean), other.length ? Charts.usual(other) : 0);
  const usual = Math.min(slowest, Math.max(Math.min(Charts.usual(steps.most) * 1.25, mean * 3), mean * 1.5));
  let high = usual, plot = null;
  if (slowest > usual) {
    const all = el("button", { type: "button", "aria-pressed": "false" }, "Scale to the slowest");
    all.addEventListener("click", () => { high = high === usual ? slowest : usual; all.setAttribute("aria-pressed", String(high !== usual)); plot.redraw(true, true); });
    made.firstChild.append(el("span", { class: "tools" }, all));
  }
  const spot = (plot, [step, value], ratio) => [plot.valToPos(step, "x", ratio), plot.valToPos(Math.min(value, high), "y", ratio)];
  plot = Charts.chart(made, {
    x: steps.x, unit: "seconds", height: 250, range: () => [0, high],
    lines: [...bandOf(steps), { values: steps.mean, color: "accent" }, ...(data.other ? [{ values: other, color: "s4", dash: [7, 3] }] : [])],
    bands: names.band ? [{ series: [1, 2], fill: "band" }] : [],
    say: (place, say) => [at(place), `${names.line} ${say(steps.mean[place])}`, names.band && `${say(steps.least[place])} to ${say(steps.most[place])}`,
      data.other && `B ${say(other[place])}`].filter(Boolean).join("\n"),
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
  const columns = [steps.mean, ...(names.band ? [steps.least, steps.most] : []), ...(data.other ? [other] : [])];
  below(made, "steps", ["step", names.line, ...(names.band ? [names.least, names.most] : []), ...(data.other ? ["B"] : [])],
    steps.x.map((x, place) => [x.toLocaleString("en"), ...columns.map((values) => Charts.seconds(values[place]))]));
}

function marksChart() {
  if (!data.marks) return;
  const { lanes, marks } = data.marks;
  const made = figure("Events", null, data.marks.text, page.lastChild);
  const x = [...new Set(marks.map((mark) => mark[0]))];
  const place = new Map(x.map((step, index) => [step, index]));
  const lines = lanes.map((lane, row) => ({ values: x.map(() => null), points: LANE_COLORS[lane] || "s0", row }));
  const said = x.map(() => []);
  for (const [step, lane, text] of marks) { lines[lane].values[place.get(step)] = lanes.length - 1 - lane; said[place.get(step)].push(text); }
  Charts.chart(made, {
    x, lines, rows: [...lanes].reverse(), height: 20 * lanes.length + 22, range: [-0.6, lanes.length - 0.4],
    say: (index) => [`step ${x[index].toLocaleString("en")}`, ...said[index].slice(0, 4), ...(said[index].length > 4 ? [`and ${said[index].length - 4} more`] : [])].join("\n"),
  });
  below(made, "marks", ["step", "event", "what"], marks.map(([step, lane, text]) => [step.toLocaleString("en"), lanes[lane], text]), ["number", "label", "label"]);
}

function rateChart() {
  const rate = data.rate;
  if (!rate) return;
  const name = rate.unit === "share" ? "MFU" : "TFLOPS";
  const made = figure(name, key([name, "accent", true], rate.names.band && [rate.names.band, "band"]), rate.text, page.lastChild);
  const high = Math.min(Math.max(...rate.most.filter((v) => v != null)) * 1.08, Charts.usual(rate.most) * 1.6);
  Charts.chart(made, {
    x: steps.x, unit: rate.unit, height: 180, range: [0, high],
    lines: [...bandOf(rate), { values: rate.mean, color: "accent" }],
    bands: rate.names.band ? [{ series: [1, 2], fill: "band" }] : [],
    say: (place, say) => [at(place), `${name} ${say(rate.mean[place])}`, rate.names.band && `${say(rate.least[place])} to ${say(rate.most[place])}`].filter(Boolean).join("\n"),
  });
  const columns = rate.names.band ? ["mean", "least", "most"] : ["mean"];
  below(made, "rate", ["step", name, ...(rate.names.band ? [rate.names.least, rate.names.most] : [])],
    steps.x.map((x, place) => [x.toLocaleString("en"), ...columns.map((one) => Charts.units[rate.unit].say(rate[one][place]))]));
}

function stagesChart() {
  const stages = data.stages;
  if (!stages) return;
  const made = figure("Stages of a step", key(...stages.names.map((name, place) => [`${name} ${Charts.percent(stages.totals[place])}`, STAGE_COLORS[name] || "s6"])), stages.text, page.lastChild);
  const sums = steps.x.map(() => 0);
  const piled = stages.shares.map((values) => values.map((value, place) => (value == null ? null : (sums[place] += value))));
  Charts.chart(made, {
    x: steps.x, unit: "share", height: 190, range: [0, 1],
    lines: piled.map((values, place) => ({ values, width: 0, fill: STAGE_COLORS[stages.names[place]] || "s6" })).reverse(),
    say: (place, say) => [at(place), ...stages.names.map((name, row) => `${name} ${say(stages.shares[row][place])}`)].join("\n"),
  });
  below(made, "stages", ["step", ...stages.names], steps.x.map((x, place) => [x.toLocaleString("en"), ...stages.shares.map((values) => Charts.percent(values[place]))]));
}

function useCharts(place) {
  for (const use of data.use || []) {
    const made = figure(`${use.title} over the steps`, key(...use.names.map((name, place) => [name, ["accent", "second"][place], true])), use.text, place);
    const high = use.unit === "share" ? 1 : Math.max(...use.values.flat().filter((v) => v != null)) * 1.15 || 1;
    Charts.chart(made, {
      x: use.x, unit: use.unit, height: 160, range: [0, high],
      lines: use.values.map((values, place) => ({ values, color: ["accent", "second"][place] })),
      say: (place, say) => [`step ${use.x[place].toLocaleString("en")}`, ...use.names.map((name, row) => `${name} ${say(use.values[row][place])}`)].join("\n"),
    });
    below(made, use.title, ["step", ...use.names], use.x.map((x, place) => [x.toLocaleString("en"), ...use.values.map((values) => Charts.units[use.unit].say(values[place]))]));
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
if (data.account || data.peak) section("Where time and FLOPs went", el("div", { class: "two" }, ...[bar("Wall time", "account", data.account, WALL_COLORS), bar("Peak", "peak", data.peak, { "model FLOPs (MFU)": "s2", "recomputation": "s0", "the optimizer's products": "s0", "recomputation and the optimizer's products": "s0", unused: "s7" })].filter(Boolean)));

if (data.goodput) section("Attempts", bar("Time since the first start", "goodput", data.goodput.all, GOODPUT_COLORS), el("div", { class: "two" }, ...data.goodput.attempts.map((one) => bar(one.name, null, one.bar, GOODPUT_COLORS))));

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
  // The columns of the heat map lie under the same steps of the charts above, and follow the zoom of these charts.
  const left = 84, right = 30, foot = 18, height = heat.ranks.length * cell + foot;
  const shown = () => (steps ? Charts.view : [heat.first - 0.5, heat.last + 0.5]);
  drawHeat = (most = Infinity) => {
    const wide = Math.min(most, made.clientWidth - 28), scale = devicePixelRatio || 1, [low, high] = shown(), space = wide - left - right;
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
  made.append(how("heat") || "");
  if (heat.left_out) made.append(el("p", { class: "said" }, `${heat.left_out.toLocaleString("en")} more ranks are not drawn: those that exceed the median rank least.`));
  return made;
}
section(data.heat ? "Ranks and slow steps" : "Slow steps", heatMap(), pair(table("worst"), table("ranks")));

// ---- profiled steps
(data.profiles || []).forEach((one, place) => section(place ? null : "What a step consists of",
  el("div", { class: "profile" }, el("h3", {}, one.title), el("p", {}, joined(one.text)), one.trace && el("p", { class: "said" }, "The trace opens at ui.perfetto.dev: ", el("code", {}, one.trace))),
  pair(bar("Time of the profiled steps", "profile_time", one.profile_time), bar("Busy time by class", "profile_classes", one.profile_classes)),
  table("profiled_modules", { of: one, class: "wordy" }), table("operations", { of: one, class: "wordy" }), table("copies", { of: one, class: "wordy" }), table("waits", { of: one })));

// ---- the rest
section("FLOPs", table("modules"), table("products"), pair(table("phases"), table("uncounted")));
const memory = bar("Memory of a step", "memory", data.memory);
if (memory || (data.use || []).length) {
  const place = el("div", { class: "two" });
  section("Memory and machine", memory, place);
  useCharts(place);
}
section(null, table("checklist", { class: "wordy" }));
section(null, table("environment", { folded: true }));
page.append(el("footer", {},
  el("p", {}, [steps && steps.about, "Lines and bands leave out excluded steps: the first step, and steps with a FLOP count, a profile, an evaluation or a checkpoint."].filter(Boolean).join(" ")),
  el("p", {}, "The slowest steps are drawn one by one; a triangle at the upper edge is a step beyond the scale. Steps that were repeated after a restart are shown as they ran last."),
  el("p", {}, `${data.title.version}. The page needs no network. Charts: uPlot 1.6.32, MIT licence, © 2022 Leon Sorokin.`)));
nameToggle();
