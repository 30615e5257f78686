// Counting a text, the models there are, and their facts.

import { byId, complain, element, format, later, plural, submitting } from "./dom.js";
import { isUntouched, type, write } from "./editor.js";
import { ask } from "./server.js";
import { accept, emit, on, session, subject } from "./session.js";

const LARGEST_TEXT = 20_000_000; // bytes, as in guard.py
let formWanted = false; // whether to show the form for another text

const isCounting = () => session.job && !session.job.subject && !session.job.error;

async function countText(body, query, name) {
  complain("");
  if (new Blob([body]).size > LARGEST_TEXT) {
    complain("this text is larger than 20 MB, the limit of this page; use saffu train instead");
    return;
  }
  const started = await ask(`count?${new URLSearchParams({ split: byId("split").value, name, ...query })}`, body);
  if (!started) return;
  session.job = started;
  formWanted = false;
  showCount();
  later("refresh", 100, refresh);
}

function countPasted() {
  const text = byId("source").value;
  if (text.trim()) return countText(text, {}, "your text");
  complain("there is no text to count; paste some text, or drop a file");
  byId("source").focus();
}

const readFile = (file) => file && countText(file, {}, file.name);

export async function refresh() {
  const state = await ask(isCounting() ? `state?stage=${session.job.stage}` : "state", undefined, { method: "GET", replace: "state" });
  if (!state) return;
  const finished = isCounting() && state.job?.subject;
  if (state.job?.error && isCounting()) {
    complain(state.job.error);
    formWanted = true;
  }
  const isExample = isUntouched(); // of the model before
  accept(state);
  const first = !subject();
  if (finished || first) session.current = session.models.at(-1)?.id ?? "";
  const isNew = subject() && (finished || first);
  if (isNew && isExample) write(subject().examples[0] ?? ""); // asks for suggestions, before panels are drawn
  else if (isNew) type();
  emit("models");
  if (finished) {
    document.title = `${subject().name} – saffu play`;
    byId("facts").firstElementChild.open = false;
  }
  if (isNew && !formWanted) byId("editor").focus({ preventScroll: true });
  if (state.job?.error && formWanted) byId("source").focus();
  const waiting = subject()?.changes.some((change) => change.equal === null && !change.failed);
  const fitting = session.models.some((model) => !model.rival && model.rival_note.includes("being fitted"));
  const scoring = !state.job?.error && session.models.some(({ scores }) => scores.held_out && !scores.calibrated);
  if (isCounting()) later("refresh", 0, refresh); // the answer waits for the next stage
  else if (scoring || waiting || fitting || session.models.some(({ training }) => training && !training.done)) later("refresh", 600, refresh);
}

function showModels() {
  const choice = byId("model");
  choice.replaceChildren(...session.models.map(({ id, name }) => element("option", { value: id, textContent: name, selected: id === session.current })));
  choice.parentElement.hidden = session.models.length < 2;
  byId("with-model").classList.toggle("waiting", !subject());
}

function showCount() {
  const model = subject();
  byId("progress").hidden = !isCounting();
  byId("facts").hidden = isCounting() || !model || formWanted;
  byId("count-form").hidden = isCounting() || Boolean(model && !formWanted);
  byId("count").hidden = byId("progress").hidden && byId("count-form").hidden;
  byId("back").hidden = !model;
  if (isCounting()) showProgress(session.job);
  if (model) showFacts(model);
}

function showProgress(job) {
  byId("progress-title").textContent = `Counting ${job.name}…${job.seconds >= 1 ? ` ${job.seconds.toFixed(0)} s` : ""}`;
  byId("done").max = job.stages.length;
  byId("done").value = job.stage + 0.5;
  const list = byId("stages");
  while (list.children.length < job.stages.length) list.append(element("li"));
  job.stages.forEach((stage, place) => {
    const item = list.children[place];
    item.textContent = stage;
    item.className = place < job.stage ? "done" : place === job.stage ? "now" : "";
  });
}

function showFacts(model) {
  byId("facts-title").textContent = model.name.replace(/^(your|the) /, (word) => word[0].toUpperCase() + word.slice(1)); // not names of files
  const { scores } = model;
  const seconds = scores.seconds ? `, counted in ${scores.seconds.toFixed(1)} s` : "";
  byId("facts-line").textContent = plural(model.documents, "document") + seconds;
  const facts = [["tokens", format(model.tokens)], ["documents", format(model.documents)], ["vocabulary", format(model.vocabulary)]];
  if (scores.seconds) facts.push(["seconds to count", scores.seconds.toFixed(1)]);
  byId("numbers").replaceChildren(...facts.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  showScores(scores);
}

function showScores(scores) {
  const rows = [["this model", scores.calibrated], ["Kneser–Ney 5-gram", scores.kneser_ney], ["the paper’s solution", scores.paper]];
  const shown = rows.filter(([, bits]) => bits);
  const most = Math.max(...shown.map(([, bits]) => bits));
  const least = Math.min(...shown.map(([, bits]) => bits));
  const cells = shown.flatMap(([name, bits]) => {
    const fill = element("div", { className: bits === least ? "fill best" : "fill" });
    fill.style.width = `${(100 * bits) / most}%`;
    return [element("span", { textContent: name }), element("div", { className: "track" }, fill), element("span", { className: "value", textContent: bits.toFixed(3) })];
  });
  let note = "";
  if (shown.length) note = `bits per byte (lower is better) on ${plural(scores.held_out, "document")} set aside for this test, and counted after it`;
  else if (scores.seconds) note = "With ten documents or more, some would be held out to score the model.";
  byId("scores").replaceChildren(...cells, element("span", { className: "note", textContent: note }));
}

export function startCount() {
  on("models", showModels);
  on("models", showCount);
  byId("count-text").addEventListener("click", countPasted);
  for (const button of document.querySelectorAll("[data-demo]")) button.addEventListener("click", () => countText("", { demo: button.dataset.demo }, ""));
  byId("file").addEventListener("change", (event) => readFile(event.target.files[0]));
  byId("again").addEventListener("click", () => {
    formWanted = true;
    showCount();
    byId("source").focus();
  });
  byId("back").addEventListener("click", () => {
    formWanted = false;
    complain("");
    showCount();
    byId("again").focus();
  });
  const drop = byId("count");
  document.addEventListener("dragover", (event) => event.preventDefault());
  drop.addEventListener("dragover", () => drop.classList.add("dropping"));
  drop.addEventListener("dragleave", () => drop.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("dropping");
    readFile(event.dataTransfer.files[0]);
  });
  byId("model").addEventListener("change", (event) => {
    session.current = event.target.value;
    emit("models");
    type();
  });
  submitting("save", async () => {
    const button = byId("save").lastElementChild;
    const saved = await ask("save", { model: session.current, name: byId("save-name").value });
    if (saved) button.textContent = `Saved as ${saved.saved}`;
    later("saved", 4000, () => (button.textContent = "Save model"));
  });
}
