"""saffu in five minutes. Run it: python docs/tutorial.py (about ten seconds; it writes into a temporary folder)

Every step shows the Python call; the command that does the same stands beside it.
"""

# %% Text: any iterable of strings, one a document. Here, English that every Python brings along.
import itertools
import json
import tempfile
from pathlib import Path

import saffu
from saffu.text import default_corpus

paragraphs = list(itertools.islice(default_corpus(), 600))
train = [text for number, text in enumerate(paragraphs) if number % 20]
held_out = paragraphs[::20]
print(f"{len(train)} documents to count, {len(held_out)} held out; the first begins: {train[0][:60]!r}\n")

# %% Count, and the model is there.                                saffu train books/*.txt --out model
lm = saffu.SaffuLM().fit(train, dev=held_out)
print(lm)
print(f"fitted in {lm.log_[0]['seconds']:.1f} s\n")

# %% How good is it? Always beside n-grams, on the same text.      saffu eval model held-out.txt
score = lm.score(held_out)
print(f"{'this model':<12} perplexity {score.perplexity:7.1f}   bits per byte {score.bits_per_byte:.3f}")
for name, reference in lm.reference_scores(held_out).items():
    print(f"{name:<12} perplexity {reference.perplexity:7.1f}   bits per byte {reference.bits_per_byte:.3f}")

# %% Let it write.                                                 saffu generate model "The function"
print("\nThe function" + lm.generate("The function", seed=1, top_p=0.9, max_tokens=40) + "\n")

# %% Ask it why: exact contributions to the next token, in nats.   saffu explain model "This is equivalent"
explanation = lm.explain("This is equivalent")
best = explanation.likeliest(1)[0]
print(f"after 'This is equivalent' comes {lm.tokenizer_.token(best)!r}, because of")
for term in sorted(explanation.terms[1:], key=lambda term: -term.values[best])[:3]:
    seen = "".join(lm.tokenizer_.token(token) for token in term.seen)
    print(f"  {term.name:<22} {seen!r:<22} {term.values[best]:+.2f}")
added = sum(term.values[best] for term in explanation.terms)
print(f"  all parts together {added:.4f}, the logit {explanation.logits[best]:.4f}\n")

# %% Words that keep the same company.                             saffu embed model must
near = lm.embeddings_.neighbours("must", 5)
print("near 'must':", ", ".join(f"{token.strip()} {cosine:.2f}" for token, cosine in near), "\n")

with tempfile.TemporaryDirectory() as folder:
    # %% Minimal pairs: is the acceptable sentence preferred?      saffu pairs model pairs.jsonl
    pairs = [
        {"sentence_good": "This method returns the value.", "sentence_bad": "This method return the value."},
        {"sentence_good": "The following values are used.", "sentence_bad": "The following values is used."},
    ]
    file = Path(folder) / "agreement.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    from saffu.pairs import evaluate_pairs

    (result,) = evaluate_pairs(lm, [file])
    print(f"pairs: {result['accuracy']:.0%} right, {result['tie_rate']:.0%} ties\n")

    # %% Keep it: a folder of safetensors and JSON.                saffu info model
    lm.save(Path(folder) / "model")
    again = saffu.load(str(Path(folder) / "model"))
    print(f"saved and loaded: perplexity {again.perplexity(held_out):.1f} as before\n")

# %% The paper's model: its weights are solved, then may be trained further.
#    saffu train books/*.txt --out paper --preset paper --backprop --max-folds 2
small = saffu.SaffuConfig(block=32, radius=4, block_dimension=32, hidden_dimension=64, fold=10_000)
training = saffu.TrainingConfig(max_folds=2)
paper = saffu.SaffuLM(small).fit(train[:300], dev=held_out, training=training)
paper.backprop(train[:300], held_out, training)
for row in paper.log_:
    print(f"{row['stage']:<10} dev perplexity {row['dev_perplexity']:.1f}")
