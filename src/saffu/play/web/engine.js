// The model in a worker: reads its file, and answers what the server of `saffu play` would answer.

import { why, whyTyped, wordAfter } from "./explanation.js";
import { Kernels } from "./kernels.js";
import { Sums } from "./model.js";
import { Ngrams } from "./ngrams.js";
import { sampled } from "./sampling.js";
import { Subject } from "./subject.js";
import { strip } from "./tokenizer.js";

const TYPES = { F64: Float64Array, F32: Float32Array, I64: BigInt64Array, I32: Int32Array, U64: BigUint64Array, U32: Uint32Array, U16: Uint16Array, U8: Uint8Array };
const waiting = []; // requests: {id, name, body}
let subject = null;
let problem = "";

async function fetched(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} is missing next to this page; export the model again`);
  return response.arrayBuffer();
}

// The arrays of a safetensors file.
function arraysOf(file) {
  const size = Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, size)));
  delete header.__metadata__;
  return new Map(
    Object.entries(header).map(([name, { dtype, data_offsets: [begin, end] }]) => {
      const Type = TYPES[dtype];
      return [name, new Type(file, 8 + size + begin, (end - begin) / Type.BYTES_PER_ELEMENT)];
    }),
  );
}

function ngrams(arrays, prefix) {
  const [order, vocabulary] = Array.from(arrays.get(`${prefix}.shape`), Number);
  const keys = arrays.get(`${prefix}.keys`);
  return new Ngrams(order, vocabulary, arrays.get(`${prefix}.offsets`), new Uint16Array(keys.buffer, keys.byteOffset, keys.byteLength / 2), Uint32Array.from(arrays.get(`${prefix}.counts`)));
}

async function load() {
  const [code, file] = await Promise.all(["kernels.wasm", "model.saffu"].map(fetched));
  const kernels = await Kernels.load(code);
  const arrays = arraysOf(file);
  const about = JSON.parse(new TextDecoder().decode(arrays.get("about")));
  const pairs = new Map();
  for (let distance = about.settings.order; distance <= about.settings.slots; distance += 1) pairs.set(distance, ngrams(arrays, `pairs ${distance}`));
  subject = new Subject(kernels, about, arrays, new Sums(ngrams(arrays, "memory"), pairs));
}

const state = () => ({ models: [subject.facts()], job: null });
const typed = ({ text }) => text.replaceAll("\r\n", "\n");

function said(text, word, ending) {
  if (!subject.documents) return null;
  const { context, tokens } = wordAfter(subject.tokenizer, text, word, ending);
  return subject.documents.said(context, tokens);
}

function changed(work) {
  work();
  setTimeout(() => subject.check());
  return state();
}

const answers = {
  state,
  suggest: (body) => subject.typist.suggest(typed(body), body.rest ?? "", body.ending),
  why: (body) => ({ ...why(subject.model, subject.tokenizer, typed(body), body.word, body.ending), said: said(typed(body), body.word, body.ending) }),
  read: (body) => {
    const answer = whyTyped(subject.model, subject.tokenizer, typed(body), body.rest);
    return { ...answer, said: strip(answer.word) ? said(answer.before, answer.word, null) : null };
  },
  documents: (body) => {
    if (!subject.documents) return { documents: [], holding: 0 };
    const { context, tokens } = wordAfter(subject.tokenizer, typed(body), body.word, body.ending);
    return subject.documents.speakingFor(context, tokens);
  },
  generate: (body) => sampled(subject, typed(body), body),
  forget: (body) => changed(() => subject.forget(body.document)),
  learn: (body) => changed(() => subject.learn(body.text)),
  undo: () => {
    subject.undo();
    return state();
  },
};

function answer({ name, body }) {
  try {
    if (problem) throw new Error(problem);
    return { result: answers[name](body ?? {}) };
  } catch (error) {
    const isOurs = error.constructor === Error;
    if (!isOurs) console.error(error);
    return { error: isOurs ? error.message : "the model failed unexpectedly; reload this page" };
  }
}

// Requests that the page no longer waits for are dropped before their turn comes.
function next() {
  const request = waiting.shift();
  if (!request) return;
  postMessage({ id: request.id, ...answer(request) });
  setTimeout(next);
}

const ready = load().catch((error) => (problem = error.message));

onmessage = async ({ data }) => {
  const place = waiting.findIndex(({ id }) => id === data.stop);
  if (place >= 0) waiting.splice(place, 1);
  if (!data.name) return;
  waiting.push(data);
  await ready;
  setTimeout(next);
};
