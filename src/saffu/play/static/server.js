// Asking the server that the page came from. A newer request replaces an open one of the same name.

import { complain } from "./dom.js";

const FAILED = "saffu play failed unexpectedly; the terminal shows why";
const pending = new Map();

export async function ask(name, body, { replace = name, method = "POST", raw = false } = {}) {
  stop(replace);
  const control = new AbortController();
  pending.set(replace, control);
  try {
    const response = await fetch(`api/${name}`, { method, signal: control.signal, ...content(body) });
    if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? FAILED);
    return raw ? response : await response.json();
  } catch (error) {
    if (error.name === "AbortError") return null;
    complain(error instanceof TypeError ? "the server has stopped; run saffu play again" : error.message);
    return null;
  } finally {
    if (pending.get(replace) === control && !raw) pending.delete(replace);
  }
}

export function stop(name) {
  pending.get(name)?.abort();
  pending.delete(name);
}

function content(body) {
  if (body === undefined) return {};
  const plain = typeof body === "string" || body instanceof Blob;
  return { headers: { "Content-Type": plain ? "text/plain; charset=utf-8" : "application/json" }, body: plain ? body : JSON.stringify(body) };
}
