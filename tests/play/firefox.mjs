// The page in Firefox: node firefox.mjs PUPPETEER FIREFOX ADDRESS SCHEME AXE. Prints what it saw as JSON.

import { readFileSync } from "node:fs";

const [, , library, executablePath, address, scheme, axe] = process.argv;
const { default: puppeteer } = await import(library);
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true, extraPrefsFirefox: { "ui.systemUsesDarkTheme": Number(scheme === "dark"), "ui.prefersReducedMotion": 1 } });
const page = await browser.newPage();
const problems = [];
page.on("console", (said) => problems.push(said.text()));
page.on("pageerror", (error) => problems.push(error.message));
const text = (selector) => page.$eval(selector, (found) => found.textContent);
const value = () => page.$eval("#editor", (found) => found.value);
await page.goto(address);
await page.waitForSelector("#documents li p");
await page.$eval("#editor", (editor) => {
  editor.focus();
  editor.select();
});
await page.keyboard.type("the zebra cr");
await page.waitForFunction(() => document.querySelector("#words .word")?.textContent === "crossed");
await page.keyboard.press("Tab");
const inserted = await value();
await page.keyboard.down("Control");
await page.keyboard.press("z");
await page.keyboard.up("Control");
const undone = await value();
await page.waitForFunction(() => document.getElementById("why-title").textContent === "Why “crossed”?");
await page.$eval("#documents li button", (button) => button.click()); // at once: the list may be about to change
await page.waitForSelector("#changes li.equal");
const verdict = await text("#changes .verdict");
await page.evaluate(readFileSync(axe, "utf-8"));
const widths = [];
for (const width of [390, 640, 1000, 1600]) {
  await page.setViewport({ width, height: 800 });
  const found = await page.evaluate(async () => ({ wide: document.documentElement.scrollWidth > innerWidth, violations: (await window.axe.run()).violations.map(({ id }) => id) }));
  widths.push({ width, ...found });
}
const isDark = await page.evaluate(() => matchMedia("(prefers-color-scheme: dark)").matches);
await page.click("#undo");
await page.waitForFunction(() => !document.querySelector("#changes li"));
await browser.close();
console.log(JSON.stringify({ inserted, undone, verdict, widths, isDark, problems }));
