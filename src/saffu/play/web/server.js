// Asking the model that runs in this page, in a worker. A newer request replaces an open one of the same name.

import { byId, complain } from "./dom.js";

const engine = new Worker("engine.js", { type: "module" });
const pending = new Map(); // by name: {id, answer}
let requests = 0;

byId("progress-title").textContent = "Loading the model…";
for (const id of ["count", "progress"]) byId(id).hidden = false;

engine.onmessage = ({ data }) => {
  for (const request of pending.values()) if (request.id === data.id) request.answer(data);
};
engine.onerror = () => complain("the model cannot be loaded; open this page from a web server, in a current browser");

export async function ask(name, body, { replace = name, raw = false } = {}) {
  stop(replace);
  requests += 1;
  const id = requests;
  const { result, error, stopped } = await new Promise((answer) => {
    pending.set(replace, { id, answer });
    engine.postMessage({ id, name, body });
  });
  if (stopped) return null;
  pending.delete(replace);
  if (error) {
    complain(error);
    return null;
  }
  if (name === "state") byId("forget").hidden = !result.models[0].has_texts; // counts alone cannot show which document to forget
  return raw ? new Response(result) : result;
}

export function stop(name) {
  const open = pending.get(name);
  pending.delete(name);
  if (!open) return;
  engine.postMessage({ stop: open.id });
  open.answer({ stopped: true });
}
