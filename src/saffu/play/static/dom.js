// Elements, numbers, and tokens as the page shows them. Text from outside enters the page as text nodes only.

export const byId = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Text from outside within a sentence: marks of direction such as U+202E end where it ends.
export const isolated = (text, name = "bdi", properties = {}) => element(name, { dir: "auto", textContent: text, ...properties });

const grouped = new Intl.NumberFormat("en");
export const format = (value) => grouped.format(value);
export const plural = (count, thing) => `${format(count)} ${thing}${count === 1 ? "" : "s"}`;
export const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : p >= 0.001 ? `${(100 * p).toFixed(1)}%` : "<0.1%");
export const signed = (bits) => `${bits < 0 ? "−" : "+"}${Math.abs(bits).toFixed(2)}`;
export const visible = (token) => ({ "<eod>": "⏎", "<pad>": "∅", "\n": "⏎" })[token] ?? (token.trim() || "␣");

const timers = new Map();

export function later(name, milliseconds, work) {
  clearTimeout(timers.get(name));
  timers.set(name, setTimeout(work, milliseconds));
}

export function submitting(id, work) {
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    work();
  });
}

export function complain(message) {
  byId("error").textContent = message;
  byId("error").hidden = !message;
}

export function speak(message) {
  byId("spoken").textContent = message;
}

export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
