// Training a network next to the counts, and the curve that falls meanwhile.

import { refresh } from "./count.js";
import { byId, drawn, element, later, percent, submitting } from "./dom.js";
import { type } from "./editor.js";
import { ask } from "./server.js";
import { accept, emit, on, session, subject } from "./session.js";

const WIDTH = 640;
const HEIGHT = 160;
const MARGIN = 12;
let last = { seconds: -1, at: 0 }; // the latest moment of the curve, and when the page learned of it

// Bits per byte of held-out text over time; the counts alone are a level line.
function curve({ minutes, moments }) {
  const counts = moments[0].counts;
  const values = moments.map(({ bits }) => bits);
  const high = Math.max(counts, ...values);
  const low = Math.min(counts - 0.05, ...values);
  const seconds = Math.max(60 * minutes, moments.at(-1).seconds);
  const x = (each) => (MARGIN + ((WIDTH - 2 * MARGIN) * each) / seconds).toFixed(1);
  const y = (bits) => (MARGIN + ((HEIGHT - 2 * MARGIN) * (high - bits)) / (high - low)).toFixed(1);
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `From ${counts.toFixed(3)} to ${Math.min(...values).toFixed(3)} bits per byte` });
  picture.append(
    drawn("line", { class: "level", x1: MARGIN, x2: WIDTH - MARGIN, y1: y(counts), y2: y(counts) }),
    drawn("polyline", { class: "falling", points: moments.map((each) => `${x(each.seconds)},${y(each.bits)}`).join(" ") }),
    drawn("circle", { class: "now", cx: x(moments.at(-1).seconds), cy: y(values.at(-1)), r: 4 }),
  );
  return picture;
}

function legend({ minutes, moments }) {
  const { bits, counts } = moments.at(-1);
  const key = (name) => element("span", { className: `line ${name}` });
  const axes = `; bits per byte of text set aside (lower is better), over ${60 * minutes} seconds`;
  return element("p", { className: "quiet" }, key("falling"), `with the network: ${bits.toFixed(3)}`, key("level"), `counts alone: ${counts.toFixed(3)}`, axes);
}

function line({ minutes, moments, outcome, failed, done, model }) {
  if (failed) return failed;
  if (done && outcome && !model) return `${outcome[0].toUpperCase()}${outcome.slice(1)}.`;
  if (!moments.length) return "Counting most of the text, so that the rest shows what training gains…";
  const { seconds, bits, counts } = moments.at(-1);
  const kept = done ? Math.min(...moments.map((moment) => moment.bits)) : bits;
  const gain = 1 - kept / counts;
  const verdict = gain > 0.0005 ? `new text takes ${percent(gain)} fewer bits than with the counts alone` : "not better than the counts alone yet";
  return done ? `Done: ${verdict}.` : `After ${Math.min(seconds, 60 * minutes).toFixed(0)} of ${60 * minutes} seconds: ${verdict}.`;
}

// The time since training began, also between the moments of the curve, which are rare.
function showProgress({ minutes, moments, done }) {
  const seconds = moments.at(-1)?.seconds ?? 0;
  if (last.seconds !== seconds) last = { seconds, at: performance.now() };
  byId("train-progress").hidden = done || !moments.length;
  byId("train-progress").max = 60 * minutes;
  byId("train-progress").value = seconds + (performance.now() - last.at) / 1000;
}

function show() {
  const model = subject();
  if (!model) return;
  const { training } = model;
  byId("train").hidden = !model.has_texts || model.has_network;
  byId("train-form").hidden = Boolean(training && !training.done);
  byId("training").hidden = !training;
  if (!training) return;
  showProgress(training);
  const text = line(training);
  if (byId("train-line").textContent !== text) byId("train-line").textContent = text;
  byId("curve").replaceChildren(...(training.moments.length ? [curve(training), legend(training)] : []));
  byId("use-network").hidden = !session.models.some(({ id }) => id === training.model);
}

export function startTrain() {
  on("models", show);
  submitting("train-form", async () => {
    const state = await ask("train", { model: session.current, minutes: Number(byId("train-minutes").value) });
    if (!state) return;
    accept(state);
    emit("models");
    later("refresh", 600, refresh);
  });
  byId("use-network").addEventListener("click", () => {
    session.current = subject().training.model;
    emit("models");
    type();
    byId("editor").focus();
  });
}
