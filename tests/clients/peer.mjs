// What transformers.js answers with a model folder, in node:
//   node peer.mjs MODULES TASK FOLDER TEXTS.json [OPTIONS.json]  →  one JSON document on the last line
// MODULES: a folder in which @huggingface/transformers is installed. Each text is a batch of its own half of the texts.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, task, folder, file, options] = process.argv.slice(2);
const at = createRequire(join(resolve(modules), "x.js")).resolve("@huggingface/transformers");
const { AutoModel, AutoModelForSequenceClassification, AutoTokenizer, env } = await import(pathToFileURL(at));
const HALF = 3;

env.allowRemoteModels = false;
env.localModelPath = dirname(resolve(folder)) + "/";
const name = basename(folder);
const texts = JSON.parse(readFileSync(file, "utf-8"));
const kind = task === "vectors" ? AutoModel : AutoModelForSequenceClassification;
const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await kind.from_pretrained(name, options ? JSON.parse(options) : {});
const rows = [];
for (const part of [texts.slice(0, HALF), texts.slice(HALF)]) {
  const output = await model(await tokenizer(part, { padding: true, truncation: true }));
  rows.push(...output[task === "vectors" ? "last_hidden_state" : "logits"].tolist());
}
console.log("\n" + JSON.stringify({ versions: { "transformers.js": env.version }, rows }));
