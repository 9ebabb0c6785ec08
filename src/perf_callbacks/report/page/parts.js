"use strict";
// Parts of the page, built from the data alone, as text: nothing in a journal is ever read as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

const PART_COLORS = ["s2", "s1", "s3", "s0", "s4", "s6", "s5", "s7"];
const chip = (color, line) => el("i", { class: line ? "line" : "", style: { background: `var(--${color})` } });
const key = (...pairs) => el("span", { class: "key" }, ...pairs.filter(Boolean).map(([name, color, line]) => el("span", {}, chip(color, line), name)));
const pair = (...parts) => (parts.some(Boolean) ? el("div", { class: "two" }, ...parts) : null);

// No line ends between a number and its unit.
const joined = (text) => text.replace(/(\d) (?=(us|ms|s|B|kB|MB|GB)\b)/g, "$1\u00a0");
const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? "" : "."}`;

// Text of the package, with code between backticks.
const marked = (text) => joined(text).split("`").map((part, place) => (place % 2 ? el("code", {}, part) : part));

function section(title, ...parts) {
  const shown = parts.filter((part) => part != null);
  if (shown.length) page.append(el("section", {}, title && el("h2", {}, title), ...shown));
}

// ---- how a figure was computed
function explained(found) {
  const list = (pairs) => (pairs.length ? el("dl", {}, ...pairs.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))) : null);
  const line = (name, text) => (text ? el("p", {}, el("b", {}, `${name}: `), text) : null);
  return [
    el("p", {}, marked(sentence(found.meaning))),
    found.equation ? el("p", { class: "equation" }, joined(found.equation)) : null,
    list(found.values.map(([name, text]) => [name, joined(text)])), list(found.columns.map(([heading, text]) => [heading, marked(text)])),
    line("From the journal", marked(found.source)), line("Not counted", found.left_out && marked(sentence(found.left_out))),
    line("Not counted in this run", found.uncounted),
  ];
}

function how(name) {
  const found = data.how[name];
  return found ? el("details", { class: "how" }, el("summary", {}, "How is this computed?"), ...explained(found)) : null;
}

// The numbers at the top: a click on the name of a number opens a panel below all of them.
function tiles(figures) {
  const panels = [], buttons = [];
  const toggle = (place) => buttons.forEach((button, other) => {
    const open = other === place && button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(open));
    panels[other].hidden = !open;
  });
  const tile = (one, place) => {
    const button = el("button", { type: "button", "aria-expanded": "false", "aria-controls": `how-${place}`, on: { click: () => toggle(place) } }, one.name);
    buttons.push(button);
    panels.push(el("div", { class: "how panel", id: `how-${place}`, role: "region", "aria-label": `How ${one.name} is computed`, hidden: "" }, el("h3", {}, one.name), ...explained(one.how)));
    return el("div", { class: "tile" }, el("dt", {}, button), el("dd", { class: "value" }, one.value),
      one.other == null ? null : el("dd", { class: "other" }, el("b", {}, "B "), one.other), el("dd", { class: "note" }, joined(one.note)));
  };
  return [el("dl", { class: "tiles" }, ...figures.map(tile)), ...panels];
}

// ---- tables and figures
function table(name, options = {}) {
  const found = (options.of || data).tables[name];
  if (!found) return null;
  // a column that is empty in all rows is left out
  const filled = found.columns.map((_, place) => found.rows.some((row) => row[place])), shown = (cells) => cells.filter((_, place) => filled[place]);
  const columns = shown(found.columns);
  const inside = (text, heading, kind) => {
    if (kind === "code" && text) return el("code", {}, text);
    return heading.endsWith("step") && data.steps && kind === "number" ? stepButton(text) : joined(text);
  };
  const cell = (text, [heading, kind]) => el("td", { class: kind, "data-label": heading }, inside(text, heading, kind));
  const body = el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map(([heading, kind]) => el("th", { class: kind, scope: "col" }, heading)))),
    el("tbody", {}, ...found.rows.map((row) => el("tr", {}, ...shown(row).map((text, place) => cell(text, columns[place]))))));
  const inner = found.rows.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": found.title }, body) : null;
  if (options.folded) return el("details", { class: "table" }, el("summary", {}, el("h3", {}, found.title)), inner, how(name));
  const head = el("header", {}, el("h3", {}, found.title), found.note ? el("span", { class: "said" }, joined(found.note)) : null);
  return el("div", { class: `table ${options.class || ""}` }, head, inner, how(name));
}

// The number of a step, which zooms all charts to its neighbours.
function stepButton(text) {
  const step = Number(text.replaceAll(",", "")), around = Math.max(20, 2 * data.steps.width);
  const look = () => { Charts.zoom(step - around, step + around); document.getElementById("steps").scrollIntoView(); };
  return step >= data.steps.first && step <= data.steps.last ? el("button", { class: "step", type: "button", title: "Zoom to this step", on: { click: look } }, text) : text;
}

function figure(title, legend, text, place) {
  const made = el("figure", { role: "group", "aria-label": text }, el("figcaption", {}, el("h3", {}, title), legend));
  place?.append(made);
  return made;
}

// Below a chart: its values as a table, which is built when it is opened, and how the chart is computed.
function below(into, name, headings, rows, kinds = headings.map(() => "number")) {
  const build = () => el("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": "Values" }, el("table", {},
    el("thead", {}, el("tr", {}, ...headings.map((heading, place) => el("th", { class: kinds[place], scope: "col" }, heading)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((text, place) => el("td", { class: kinds[place] }, text)))))));
  const folded = el("details", { class: "data" }, el("summary", {}, `As a table: ${rows.length.toLocaleString("en")} ${rows.length === 1 ? "row" : "rows"}`));
  folded.addEventListener("toggle", () => { if (folded.open && folded.children.length === 1) folded.append(build()); });
  into.append(el("div", { class: "below" }, folded, how(name)));
}

function bar(title, name, found, colors) {
  if (!found) return null;
  const made = figure(title, el("span", { class: "said" }, found.title), found.text);
  const tint = (part, place) => `var(--${(colors && colors[part.name]) || PART_COLORS[place % PART_COLORS.length]})`;
  made.append(
    el("div", { class: "stack", role: "img", "aria-label": found.text }, ...found.parts.map((part, place) =>
      el("span", { title: `${part.name} ${part.value}`, style: { width: `${part.share * 100}%`, background: tint(part, place) } }))),
    el("ul", { class: "parts" }, ...found.parts.map((part, place) =>
      el("li", {}, el("i", { style: { background: tint(part, place) } }), el("span", {}, part.name), el("b", {}, joined(part.value))))),
    how(name) || "");
  return made;
}
