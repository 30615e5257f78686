// What each part of the calibrated model adds to a prediction, as in calibrated/explain.py.

const logSum = (values) => {
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return top + Math.log(values.reduce((sum, value) => sum + Math.exp(value - top), 0));
};

// Every part at two places: the token's class, and the token among its class.
export function explained(model, context, token, feature, exponents) {
  const { about, views, cache } = model;
  const rank = model.ranks[token];
  const k = model.classes[rank];
  const places = [k, about.classes + rank];
  const at = (part, level) => feature(part)[places[level]];
  const weight = (part, level) => exponents[2 * part + level];
  const gamma = cache ? [0, 1].map((level) => weight(1 + views.length, level)) : [1, 1];
  const terms = [];
  const add = (name, [ofClass, ofToken], seen = [], shown = null) => terms.push({ name, value: ofClass + ofToken, of_class: ofClass, weight: shown, seen });
  const plain = [0, 0];
  const scaled = (values) => values.map((value, level) => gamma[level] * value);

  const ofPrior = [0, 1].map((level) => views.reduce((sum, view, number) => sum + (view.is_slot ? 0 : weight(1 + number, level)), weight(0, level)));
  const start = ofPrior.map((exponent, level) => exponent * at(0, level));
  start.forEach((value, level) => (plain[level] += value));
  add("prior", scaled(start), [], ofPrior[0] * gamma[0]);
  views.forEach((view, number) => {
    const evidence = [0, 1].map((level) => weight(1 + number, level) * (at(1 + number, level) - at(0, level)));
    evidence.forEach((value, level) => (plain[level] += value));
    add(view.name, scaled(evidence), model.tokensSeen(view, context).reverse(), weight(1 + number, 0) * gamma[0]);
  });
  const memoryParts = cache ? about.memory_parts : [];
  const of = (place, level) => {
    if (!cache) return scoreWithoutMemory(model, feature, weight, place, level);
    const score = gamma[level] * feature(1 + views.length)[place];
    return memoryParts.reduce((sum, _, part) => sum + feature(2 + views.length + part)[place], score);
  };
  const normalizers = cache ? plain.map((value, level) => gamma[level] * (at(1 + views.length, level) - value)) : [0, 0];
  memoryParts.forEach((name, part) => {
    add(name, [0, 1].map((level) => at(2 + views.length + part, level)), seenByMemory(model, part, context), weight(2 + views.length + part, 0));
  });
  const classes = Array.from({ length: about.classes }, (_, other) => of(other, 0));
  const tokens = Array.from({ length: model.first[k + 1] - model.first[k] }, (_, place) => of(about.classes + model.first[k] + place, 1));
  const last = [-logSum(classes), -logSum(tokens)];
  add("normalizer", normalizers.map((value, level) => value + last[level]));
  return { terms, total: classes[k] + last[0] + tokens[rank - model.first[k]] + last[1] };
}

function scoreWithoutMemory({ views }, feature, weight, place, level) {
  const prior = feature(0)[place];
  let score = weight(0, level) * prior;
  views.forEach((view, number) => {
    score += weight(1 + number, level) * (feature(1 + number)[place] - (view.is_slot ? prior : 0));
  });
  return score;
}

// The tokens that a part of the memory looks for further back, oldest first.
function seenByMemory({ about }, part, context) {
  const distances = about.contexts[part - about.half_lives]?.distances ?? [];
  if (!distances.length || distances.at(-1) > context.length) return [];
  return [...distances].reverse().map((distance) => context.at(-distance));
}
