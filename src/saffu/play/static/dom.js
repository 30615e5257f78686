// Elements, numbers, and tokens as the page shows them. Text from outside enters the page as text nodes only.

export const PICTURES = "http://www.w3.org/2000/svg";
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

// An element of a picture.
export function drawn(name, properties = {}, ...children) {
  const made = document.createElementNS(PICTURES, name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Text from outside within a sentence: marks of direction such as U+202E end where it ends.
export const isolated = (text, name = "bdi", properties = {}) => element(name, { dir: "auto", textContent: text, ...properties });

const grouped = new Intl.NumberFormat("en");
export const format = (value) => grouped.format(value);
export const plural = (count, thing) => `${format(count)} ${thing}${count === 1 ? "" : "s"}`;
export const LEAST_SHOWN = 0.001; // below which a probability is only "<0.1%"

export function percent(p) {
  if (p < LEAST_SHOWN) return "<0.1%";
  if (p > 1 - LEAST_SHOWN / 2 && p < 1) return ">99.9%";
  return `${(100 * p).toFixed(p >= 0.0995 && p < 0.995 ? 0 : 1)}%`;
}

export function signed(bits, digits = 2) {
  const size = Math.abs(bits).toFixed(digits);
  return `${Number(size) === 0 ? "" : bits < 0 ? "−" : "+"}${size}`;
}

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
  byId("error").textContent = message && `${message[0].toUpperCase()}${message.slice(1)}.`;
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
