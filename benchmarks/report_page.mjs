// Open reports in a real browser and say what they do: width, requests, errors, zoom, explanations, print.
//
//   npm install --no-save puppeteer-core
//   CHROME=/usr/bin/chromium node benchmarks/report_page.mjs out/report.html other.html --pictures out/pictures
//   CHROME=/usr/bin/chromium node benchmarks/report_page.mjs --open a.html b.html   # opening times alone
//
// Exits with 1 if a page is too wide, asks for anything, logs an error, or has a figure without an explanation.
import { mkdirSync, mkdtempSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const WIDTHS = [400, 900, 1600], SCHEMES = ["light", "dark"];
const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const words = process.argv.slice(2), place = words.indexOf("--pictures");
const pictures = place < 0 ? null : words.splice(place, 2)[1];
const browser = await puppeteer.launch({ executablePath: process.env.CHROME || "/usr/bin/chromium", args: QUIET, userDataDir: mkdtempSync(join(tmpdir(), "page-")) });
const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))));
let wrong = 0;

async function open(file, { width = 1200, scheme = "light" } = {}) {
  const page = await browser.newPage(), requests = [], errors = [];
  page.on("request", (request) => { if (!request.url().startsWith("data:")) requests.push(request.url()); });
  page.on("console", (message) => { if (["error", "warn"].includes(message.type())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("dialog", (dialog) => { errors.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  await page.setViewport({ width, height: 900, hasTouch: width < 600 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(pathToFileURL(resolve(file)).href, { waitUntil: "load" });
  return { page, requests, errors, ms: Math.round(await page.evaluate(painted)) };
}

async function openingTimes(file) {
  const times = [];
  for (let turn = 0; turn < 7; turn += 1) {
    const { page, ms } = await open(file);
    times.push(ms);
    await page.close();
  }
  times.sort((a, b) => a - b);
  console.log(`${file}: ${(statSync(file).size / 1e6).toFixed(2)} MB, opens in ${times[3]} ms (median of 7, ${times[0]} to ${times[6]})`);
}

// Pixels by which the page, and elements that may not scroll, are too wide; and figures without a text or an explanation.
const faults = () => {
  const scrolls = (one) => one.closest(".scroll, pre, .plot, .visually-hidden");
  const clipped = [...document.querySelectorAll("main *")].filter((one) => !scrolls(one) && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
  return {
    too_wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    beyond_the_edge: clipped.slice(0, 3).map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`),
    without_text: [...document.querySelectorAll("figure, canvas.heat, .stack")].filter((one) => !one.getAttribute("aria-label")).length,
    without_explanation: [...document.querySelectorAll("figure, .table, .tile")].filter((one) => !one.querySelector(".how, [aria-controls]")).map((one) => one.textContent.slice(0, 30)),
  };
};

const openAll = () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.querySelectorAll("button[aria-controls]")) if (one.getAttribute("aria-expanded") === "false") one.click();
};

async function check(file) {
  const name = basename(file, ".html");
  for (const width of WIDTHS) for (const scheme of SCHEMES) {
    const { page, requests, errors } = await open(file, { width, scheme });
    const closed = await page.evaluate(faults);
    if (pictures) await page.screenshot({ path: `${pictures}/${name}-${width}-${scheme}.png`, fullPage: true });
    await page.evaluate(openAll);
    await page.evaluate(painted);
    const opened = await page.evaluate(faults);
    if (pictures && scheme === "light") await page.screenshot({ path: `${pictures}/${name}-${width}-opened.png`, fullPage: true });
    const asked = requests.length - 1;
    const found = [closed, opened].some((one) => one.too_wide > 0 || one.beyond_the_edge.length || one.without_text || one.without_explanation.length);
    const bad = found || asked || errors.length;
    wrong += bad ? 1 : 0;
    console.log(`${name} ${width} ${scheme}: too wide by ${closed.too_wide} and, opened, ${opened.too_wide}; ${asked} requests; ${errors.length} errors`);
    if (bad) console.log(JSON.stringify({ closed, opened, errors }, null, 1));
    await page.close();
  }
  const { page, errors } = await open(file);
  await page.pdf({ path: pictures ? `${pictures}/${name}.pdf` : join(tmpdir(), "page.pdf"), format: "A4" });
  await page.evaluate(painted);
  console.log(`${name} printed: ${errors.length} errors`);
  wrong += errors.length;
  await page.close();
}

async function use(file) {
  const { page, errors } = await open(file);
  const shown = () => page.$$eval(".tools input", (inputs) => inputs.map((input) => Number(input.value)));
  const heat = () => page.evaluate(() => document.querySelector("canvas.heat")?.toDataURL());
  const chart = await page.$(".u-over");
  if (chart) {
    const before = await shown(), whole = await heat();
    await chart.evaluate((one) => one.scrollIntoView({ block: "center" }));
    const box = await chart.boundingBox();
    await page.mouse.move(box.x + box.width * 0.25, box.y + 60);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 60, { steps: 5 });
    await page.mouse.up();
    await page.evaluate(painted);
    const zoomed = await shown(), close = await heat();
    await page.mouse.move(box.x + box.width * 0.4, box.y + 90);
    await page.evaluate(painted);
    const tip = await page.$$eval(".tip", (tips) => tips.filter((one) => one.style.display === "block").map((one) => one.textContent));
    await page.mouse.click(box.x + box.width * 0.4, box.y + 90, { count: 2 });
    await page.evaluate(painted);
    const reset = await shown(), same = await heat() === whole;
    console.log("zoom", JSON.stringify({ before, zoomed, tip, reset, heat_map_follows: whole && close !== whole && same }));
    if (await page.$("button.step")) {
      await page.click("button.step");
      await page.evaluate(painted);
      console.log("step", await page.$eval("button.step", (button) => button.textContent), JSON.stringify(await shown()));
    }
  }
  if (await page.$(".tile button")) {
    await page.focus(".tile button");
    await page.keyboard.press("Enter");
    console.log("figure, by the keyboard:", await page.$eval(".panel:not([hidden])", (one) => one.innerText.replaceAll("\n", " | ")));
  }
  await page.click(".top button");
  console.log("toggle", await page.evaluate(() => `${document.documentElement.dataset.theme}, background ${getComputedStyle(document.body).backgroundColor}`));
  console.log("title", await page.title(), `; ${errors.length} errors`);
  wrong += errors.length;
  await page.close();
}

if (words[0] === "--open") {
  for (const file of words.slice(1)) await openingTimes(file);
} else {
  if (pictures) mkdirSync(pictures, { recursive: true });
  for (const file of words) await check(file);
  await use(words[0]);
}
await browser.close();
process.exitCode = wrong ? 1 : 0;
