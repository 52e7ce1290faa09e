// Runs the model of this folder in a browser, for this page or for yours:
//
//   import { loadModel } from "./model.js";
//   const model = await loadModel();
//   console.log(await model.answer("a good film"));
//
// The tokens and the answers are those of `compress predict`.
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
import { Tokenizer } from "./node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs";

// A run of letters and digits with the marks that stand inside words and names, or one other character; Chinese,
// Japanese and Korean characters stand alone.
const CJK = "\\u3040-\\u30ff\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff";
const LETTER = `(?:(?![${CJK}])[\\p{L}\\p{N}_])`;
const WORD = new RegExp(`[${CJK}]|[@#]?${LETTER}+(?:[-'’.&]${LETTER}+)*|[^\\p{L}\\p{N}_\\s]`, "gu");
const SPACE_TOKEN = /^[▁Ġ]+$/; // a token for the space before a word

// read: the name of a file of this folder → its content, an ArrayBuffer.
export async function loadModel(read = download) {
  const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
  const task = await json("task.json");
  const [pipeline, config, file] = await Promise.all([
    json("tokenizer.json"), json("tokenizer_config.json"), read(task.file),
  ]);
  const session = await ort.InferenceSession.create(new Uint8Array(file));
  return new TextModel(task, new Tokenizer(pipeline, config), session, file.byteLength);
}

async function download(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

export class TextModel {
  // task: the content of task.json.  bytes: size of the ONNX file.
  constructor(task, tokenizer, session, bytes) {
    Object.assign(this, { task, tokenizer, session, bytes, runtime: `onnxruntime-web ${ort.env.versions.web}` });
  }

  // The answer to a text, or to a pair of texts: `labels`, `score`, `words` or `similarity`, by the kind of task;
  // `tokens`: how many the model read, `cut`: how many did not fit; `milliseconds` of the tokenizer and of the model.
  async answer(text, pair = null) {
    if (this.task.answer === "similarity") return this.#compare(text, pair ?? "");
    const { encoded, outputs, milliseconds } = await this.run(text, pair);
    const found = { tokens: encoded.ids.length, cut: encoded.cut, milliseconds };
    const logits = outputs.logits.data;
    if (this.task.answer === "score") return { ...found, score: this.task.sigmoid ? sigmoid(logits[0]) : logits[0] };
    if (this.task.answer === "tags") return { ...found, words: this.#tags(text, encoded, outputs.logits) };
    const shares = this.task.answer === "any" ? Array.from(logits, sigmoid) : softmax(logits, this.task.temperature);
    return { ...found, labels: this.task.labels.map((label, i) => ({ label, probability: shares[i] })) };
  }

  // The vector of a text, a Float32Array: of embedding models.
  async vector(text) {
    return (await this.run(text, null)).outputs.sentence_embedding.data;
  }

  // Tokens, outputs of the ONNX file by name, and the milliseconds that both took.
  async run(text, pair = null) {
    const start = performance.now();
    const encoded = this.encode(text, pair);
    const shape = [1, encoded.ids.length];
    const values = { input_ids: encoded.ids, attention_mask: encoded.ids.map(() => 1), token_type_ids: encoded.segments };
    const feed = Object.fromEntries(
      this.session.inputNames.map((name) => [name, new ort.Tensor("int64", BigInt64Array.from(values[name], BigInt), shape)]),
    );
    const ready = performance.now();
    const outputs = await this.session.run(feed);
    return { encoded, outputs, milliseconds: { tokenizer: ready - start, model: performance.now() - ready } };
  }

  // Token ids and segments of a text or a pair, cut to the model's maximum length. before: special tokens in front of
  // the text.  kept: the text's tokens that were kept, from and up to.  cut: tokens that were not.
  encode(text, pair = null) {
    const [first, second] = [text, pair].map((one) => (one === null ? null : this.#prepare(one)));
    const whole = this.tokenizer.encode(first, { text_pair: second, return_token_type_ids: true });
    const parts = [first, second].filter((one) => one !== null).map((one) => this.#content(one));
    const before = findAt(whole.ids, parts[0], 0);
    const places = [before];
    if (second !== null) places.push(findAt(whole.ids, parts[1], before + parts[0].length));
    const lengths = parts.map((ids) => ids.length);
    const specials = whole.ids.length - lengths.reduce((sum, n) => sum + n, 0);
    const kept = shorten(lengths, this.task.max_length - specials);
    const left = this.task.truncation_side === "left";
    const from = lengths.map((length, i) => (left ? length - kept[i] : 0));
    const stays = (at) =>
      places.every((place, i) => {
        const inside = at - place;
        return inside < 0 || inside >= lengths[i] || (inside >= from[i] && inside < from[i] + kept[i]);
      });
    const ids = whole.ids.filter((_, at) => stays(at));
    const segments = whole.token_type_ids.filter((_, at) => stays(at));
    return { ids, segments, before, kept: [from[0], from[0] + kept[0]], cut: whole.ids.length - ids.length };
  }

  #prepare(text) {
    const whole = (this.task.prompt ?? "") + text;
    return this.task.lowercase ? whole.toLowerCase() : whole;
  }

  #content(text) {
    return this.tokenizer.encode(text, { add_special_tokens: false }).ids;
  }

  async #compare(text, pair) {
    const [one, other] = [await this.run(text), await this.run(pair)];
    const [a, b] = [one, other].map((each) => each.outputs.sentence_embedding.data);
    const norms = Math.sqrt(dot(a, a) * dot(b, b));
    const total = (name) => one.milliseconds[name] + other.milliseconds[name];
    return {
      similarity: norms > 0 ? dot(a, b) / norms : 0,
      tokens: one.encoded.ids.length + other.encoded.ids.length,
      cut: one.encoded.cut + other.encoded.cut,
      milliseconds: { tokenizer: total("tokenizer"), model: total("model") },
    };
  }

  // The words with their tags; label null: the word has no token, or was cut off.
  #tags(text, encoded, logits) {
    const labels = this.task.labels;
    return this.firstTokens(text).map(({ start, end, token }) => {
      const word = { text: text.slice(start, end), start, end, label: null, probability: null };
      if (token === null || token < encoded.kept[0] || token >= encoded.kept[1]) return word;
      const at = (encoded.before + token - encoded.kept[0]) * labels.length;
      const shares = softmax(logits.data.subarray(at, at + labels.length));
      const best = shares.indexOf(Math.max(...shares));
      return { ...word, label: labels[best], probability: shares[best] };
    });
  }

  // The words of a text and the number of the first token of each. Tokens never go over white space, so each run of
  // other characters, with the space before it, is encoded by itself; a token over a boundary is the later word's.
  firstTokens(text) {
    const words = [];
    let done = 0;
    for (const run of text.matchAll(/\s*\S+/gu)) {
      const { ids, tokens } = this.tokenizer.encode(run[0], { add_special_tokens: false });
      const blank = tokens.length > 1 && SPACE_TOKEN.test(tokens[0]) ? 1 : 0;
      const places = [...run[0].matchAll(WORD)].map((found) => [found.index, found.index + found[0].length]);
      const own = places.map(([start], number) => {
        if (number === 0) return blank;
        return Math.min(commonPrefix(this.#content(run[0].slice(0, start)), ids), ids.length - 1);
      });
      places.forEach(([start, end], number) => {
        const token = ids.length === 0 || own[number] === own[number + 1] ? null : done + own[number];
        words.push({ start: run.index + start, end: run.index + end, token });
      });
      done += ids.length;
    }
    return words;
  }
}

// Where `part` stands in `ids`, from `start` on.
function findAt(ids, part, start) {
  for (let at = start; at + part.length <= ids.length; at++) if (part.every((id, i) => ids[at + i] === id)) return at;
  throw new Error("this tokenizer changes a text's tokens beside special tokens, which this page does not support");
}

function commonPrefix(some, others) {
  let same = 0;
  while (same < some.length && some[same] === others[same]) same++;
  return same;
}

// How many tokens of each text fit into `room` together: the longer text is cut first.
function shorten(lengths, room) {
  if (lengths.length === 1) return [Math.min(lengths[0], room)];
  if (lengths[0] + lengths[1] <= room) return lengths;
  let short = Math.min(...lengths);
  let long = short > room ? short : Math.max(short, room - short);
  if (short + long > room) {
    short = Math.floor(room / 2);
    long = short + (room % 2);
  }
  return lengths[0] > lengths[1] ? [long, short] : [short, long];
}

function softmax(logits, temperature = 1) {
  const scaled = Array.from(logits, (value) => value / temperature);
  const top = Math.max(...scaled);
  const powers = scaled.map((value) => Math.exp(value - top));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

function sigmoid(value) {
  return 1 / (1 + Math.exp(-value));
}

function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}
