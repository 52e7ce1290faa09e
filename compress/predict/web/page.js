// The page: fields for the texts, the answer below them, updated while you type.
const WAIT = 200; // milliseconds after the last key
const MOST = 10; // labels that are shown

const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function addField(form, { name, example, required }) {
  const field = element("textarea");
  field.id = name.toLowerCase().replaceAll(" ", "-");
  field.value = example;
  field.required = required;
  const label = element("label", "", required ? name : `${name} (optional)`);
  label.htmlFor = field.id;
  form.append(label, field);
  return field;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function showLabels({ labels }) {
  const ranked = [...labels].sort((a, b) => b.probability - a.probability).slice(0, MOST);
  return ranked.map(({ label, probability }, place) => {
    const row = element("div", place === 0 ? "row best" : "row");
    const bar = element("meter");
    bar.value = probability;
    bar.setAttribute("aria-hidden", "true"); // the number beside it says the same
    row.append(element("span", "", label), bar, element("span", "share", percent(probability)));
    return row;
  });
}

const showNumber = (value, name) => [element("span", "score", value.toFixed(4)), element("span", "soft", ` ${name}`)];

// Words whose tags continue an entity are one mark.
function groupWords(words) {
  const groups = [];
  for (const word of words) {
    const [, prefix, type] = /^(?:([BIES])-)?(.*)$/su.exec(word.label ?? "O");
    const last = groups.at(-1);
    if (last && type !== "O" && last.type === type && (prefix === "I" || prefix === "E")) {
      last.end = word.end;
      last.probability = Math.min(last.probability, word.probability);
    } else groups.push({ start: word.start, end: word.end, type, probability: word.probability });
  }
  return groups.filter(({ type }) => type !== "O");
}

function showTags({ words }, text) {
  const line = element("div", "tagged");
  let done = 0;
  for (const { start, end, type, probability } of groupWords(words)) {
    const mark = element("mark", "", text.slice(start, end));
    mark.append(element("span", "", type));
    mark.title = `${type}, ${percent(probability)}`;
    line.append(text.slice(done, start), mark);
    done = end;
  }
  line.append(text.slice(done));
  return [line];
}

const SHOW = {
  one: showLabels,
  any: showLabels,
  score: ({ score }) => showNumber(score, "score"),
  tags: showTags,
  similarity: ({ similarity }) => showNumber(similarity, "cosine similarity"),
};

function describe(model, { tokens, cut, milliseconds }) {
  const lost = cut > 0 ? ` (${cut} more were cut off)` : "";
  const [model_ms, tokenizer_ms] = [milliseconds.model, milliseconds.tokenizer].map((ms) => ms.toFixed(1));
  return `${tokens} tokens${lost} · ${model_ms} ms, and ${tokenizer_ms} ms for the tokenizer · ${model.runtime}`;
}

async function start() {
  const { loadModel } = await import("./model.js");
  const model = await loadModel();
  const form = byId("form");
  const fields = model.task.fields.map((field) => addField(form, field));
  let newest = 0;

  async function update() {
    const [text, pair] = fields.map((field) => field.value.trim());
    const missing = fields.some((field) => field.required && !field.value.trim());
    const number = ++newest;
    if (missing) {
      byId("answer").replaceChildren();
      byId("status").textContent = "Type a text.";
      return;
    }
    const found = await model.answer(text, pair || null);
    if (number !== newest) return; // a later text is being answered
    byId("answer").replaceChildren(...SHOW[model.task.answer](found, text));
    byId("status").textContent = describe(model, found);
  }

  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => update().catch(fail), WAIT);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  await update(); // the first answer takes longer: it is computed twice, so that the time shown is the usual one
  await update();
}

function fail(error) {
  const line = element("p", "", `The model could not be loaded or run: ${error.message}`);
  byId("answer").replaceChildren(line);
  console.error(error);
}

start().catch(fail);
