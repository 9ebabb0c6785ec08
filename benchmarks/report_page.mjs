// Open a report in a real browser and say what it does: opening time, requests, errors, zoom, text of each figure.
//
//   npm install --no-save puppeteer-core
//   CHROME=/usr/bin/chromium node benchmarks/report_page.mjs out/report.html out/pictures
//   CHROME=/usr/bin/chromium node benchmarks/report_page.mjs --open a.html b.html   # opening times alone
import { statSync, mkdirSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const words = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath: process.env.CHROME || "/usr/bin/chromium", args: ["--no-sandbox"] });
const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))));

async function open(file, { width = 1200, scheme = "light" } = {}) {
  const page = await browser.newPage(), requests = [], errors = [];
  page.on("request", (request) => { if (!request.url().startsWith("data:")) requests.push(request.url()); });
  page.on("console", (message) => { if (["error", "warn"].includes(message.type())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("dialog", (dialog) => { errors.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  await page.setViewport({ width, height: 900 });
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

if (words[0] === "--open") {
  for (const file of words.slice(1)) await openingTimes(file);
} else {
  const [file, pictures] = words;
  await openingTimes(file);
  mkdirSync(pictures, { recursive: true });
  for (const [name, options] of Object.entries({ light: {}, dark: { scheme: "dark" }, narrow: { width: 400 }, "narrow-dark": { width: 400, scheme: "dark" } })) {
    const { page, requests, errors } = await open(file, options);
    const found = await page.evaluate(() => ({
      too_wide: document.documentElement.scrollWidth > innerWidth,
      figures: document.querySelectorAll("figure").length,
      without_text: [...document.querySelectorAll("figure, canvas.heat, .stack")].filter((one) => !one.getAttribute("aria-label")).length,
      title: document.title,
    }));
    await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
    console.log(name, JSON.stringify({ ...found, requests: requests.length - 1, errors }));
    if (name === "light") {
      const shown = () => page.$$eval(".tools input", (inputs) => inputs.map((input) => Number(input.value)));
      const heat = () => page.evaluate(() => document.querySelector("canvas.heat")?.toDataURL());
      const before = await shown(), whole = await heat();
      const chart = await page.$(".u-over");
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
      await page.screenshot({ path: `${pictures}/zoomed.png` });
      await page.mouse.click(box.x + box.width * 0.4, box.y + 90, { count: 2 });
      await page.evaluate(painted);
      const reset = await shown(), same = await heat() === whole;
      console.log("zoom", JSON.stringify({ before, zoomed, tip, reset, heat_map_follows: whole && close !== whole && same }));
      if (await page.$("button.step")) {
        await page.click("button.step");
        await page.evaluate(painted);
        console.log("step", await page.$eval("button.step", (button) => button.textContent), JSON.stringify(await shown()));
        await page.screenshot({ path: `${pictures}/step.png`, fullPage: true });
      }
      await page.click(".top button");
      console.log("toggle", await page.evaluate(() => `${document.documentElement.dataset.theme}, background ${getComputedStyle(document.body).backgroundColor}`));
      await page.pdf({ path: `${pictures}/printed.pdf`, format: "A4" });
    }
    await page.close();
  }
}
await browser.close();
