// What model.js of web folders answers, in node:
//   node web_answers.mjs CASES.json  →  one JSON document on the last line: a list of answers for each case
// CASES: a list of {folder, rows}; the npm packages lie in FOLDER/node_modules, a row is [text] or [text, second text].
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

globalThis.require = createRequire(import.meta.url); // onnxruntime-web looks for it in node
const cases = [];
for (const { folder, rows } of JSON.parse(readFileSync(process.argv[2], "utf-8"))) {
  const { loadModel } = await import(pathToFileURL(join(folder, "model.js")));
  const model = await loadModel(async (name) => readFileSync(join(folder, name)));
  const found = [];
  for (const [text, pair] of rows) {
    const { ids } = model.encode(text, pair ?? null);
    found.push({ ids, ...(await model.answer(text, pair ?? null)) });
  }
  cases.push(found);
}
process.stdout.write("\n" + JSON.stringify(cases) + "\n", () => process.exit(0));
