// The model on the page, as in play/subject.py: its documents, and the changes made to it, which can be undone and are verified.

import { Documents, encodeDocument } from "./documents.js";
import { Model, Sums } from "./model.js";
import { sha256 } from "./sha256.js";
import { EOD, Tokenizer, bytesOf } from "./tokenizer.js";
import { Typist } from "./typist.js";

const SHOWN = 200; // characters of a document that a change shows
const MOST_UNDONE = 10;

export class Subject {
  constructor(kernels, about, arrays, sums) {
    Object.assign(this, { kernels, about, arrays, changes: [], history: [] });
    this.tokenizer = new Tokenizer(about.merges);
    let documents = null;
    if (arrays.has("documents")) {
      const starts = arrays.get("document_starts");
      documents = new Documents(this.tokenizer, new Map(Array.from(starts.slice(1), (end, number) => [number, arrays.get("documents").slice(starts[number], end)])));
    }
    this.become({ sums, documents, forgotten: new Set() });
  }

  // Counts, documents, and the tokens of those that are gone; the model follows from them.
  become(version) {
    this.model?.free();
    this.version = version;
    this.model = new Model(this.kernels, this.about, this.arrays, version.sums);
    this.typist = new Typist(this.model, this.tokenizer);
  }

  get documents() {
    return this.version.documents;
  }

  forget(number) {
    const { documents } = this;
    if (!documents?.ids.has(number)) throw new Error("this document is no longer in the model; choose another");
    if (documents.ids.size === 1) throw new Error("this is the only document, and a model needs at least one");
    const ids = documents.ids.get(number);
    const text = documents.text(number);
    const left = documents.without(number);
    this.change("forget", text, ids, -1, left);
    this.changes.at(-1).vanished = left.wordsMissing(text);
  }

  learn(text) {
    const ids = encodeDocument(this.tokenizer, text);
    if (!ids.length) throw new Error("there is no text to learn; write a sentence");
    this.change("learn", text, ids, 1, this.documents.withAdded(ids));
  }

  change(kind, text, ids, sign, documents) {
    const sums = this.version.sums.merged(this.kernels, Sums.count(this.kernels, this.about, ids, [0, ids.length]), sign);
    if (!sums) throw new Error("cannot forget what was never counted: a count would fall below zero; nothing was changed");
    const before = this.version;
    const [from, to] = [before.sums, sums].map((each) => fingerprint(this.about, each));
    const forgotten = new Set([...before.forgotten, ...(sign < 0 ? ids : [])]);
    this.become({ sums, documents, forgotten });
    const pieces = [...forgotten].sort((a, b) => a - b).filter((id) => id > EOD && !this.model.frequencies[id] && this.tokenizer.pieces[id].length > 1).map((id) => this.tokenizer.token(id));
    this.history = [...this.history, before].slice(-MOST_UNDONE);
    const characters = [...text];
    const shown = characters.slice(0, SHOWN).join("") + (characters.length > SHOWN ? "…" : "");
    this.changes = [...this.changes, { kind, document: shown, before: from, after: to, check: "", equal: null, recounted: null, vanished: [], pieces, failed: "" }];
  }

  // Count the documents from scratch, and compare the fingerprints.
  check() {
    const change = this.changes.find(({ equal }) => equal === null);
    if (!change) return;
    const { flat, starts, ids } = this.documents;
    change.check = fingerprint(this.about, Sums.count(this.kernels, this.about, flat, starts));
    change.recounted = ids.size;
    change.equal = change.check === change.after;
  }

  undo() {
    if (!this.history.length) throw new Error("there is nothing to undo; forget or add a document first");
    this.become(this.history.pop());
    this.changes = this.changes.slice(0, -1);
  }

  facts() {
    const { about, documents, model } = this;
    return {
      id: "web", name: about.name, vocabulary: about.vocabulary,
      documents: documents ? documents.ids.size : about.trained_on.documents, tokens: model.frequencies.reduce((sum, each) => sum + each, 0), bytes: about.trained_on.bytes,
      has_texts: Boolean(documents), has_network: false, scores: {}, rival: null, rival_note: "", training: null, examples: about.examples, changes: this.changes, can_undo: this.history.length > 0,
    };
  }
}

// SHA-256 of everything that the model predicts from: its description, whose own hash is given, and its counts.
function fingerprint(about, { memory, pairs }) {
  const arrays = [memory, ...pairs.values()].flatMap(({ offsets, keys, counts }) => [offsets, keys, counts]);
  return sha256([bytesOf(about.fingerprint), ...arrays.map((array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength))]);
}
