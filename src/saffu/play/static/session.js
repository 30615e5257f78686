// What the panels share: the models, the place in the text, and the word that is explained. Panels listen for changes.

export const session = {
  models: [],
  current: "", // id of the model in use
  job: null, // a text that is being counted
  place: null, // what is suggested and explained: {text, ending} before it, {value, caret} of the editor, {start, end} of a word in it
  words: [], // suggestions for that place: {word, p, whole}; whole: of which it is only the next part
  chosen: 0, // which of them is explained; −1: the word that is written there
  written: null, // the explanation of the word that is written there
  wanted: "", // a word to choose once it is suggested
  explained: null, // the explanation shown
};

export const subject = () => session.models.find((model) => model.id === session.current);

export function chosenWord() {
  const suggestion = session.words[session.chosen];
  return session.chosen < 0 ? session.written?.word : (suggestion?.whole ?? suggestion?.word);
}

const events = new EventTarget();
// "models": models or changes are other ones; "place": suggestions for a place; "word": a word to explain; "why": it is explained.
export const on = (name, work) => events.addEventListener(name, () => work());
export const emit = (name) => events.dispatchEvent(new Event(name));

export function accept(state) {
  session.models = state.models;
  session.job = state.job;
}
