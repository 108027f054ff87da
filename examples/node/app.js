// A client application in Node: hosts two tools, lets an agent listen for an event, fires it, and follows the run.
//
//     npm ci
//     RONDO_KEY=… node app.js            plays it once; `node app.js serve` only hosts the tools, until Ctrl-C
//
// RONDO_URL is http://127.0.0.1:8080/v1 unless set, MODEL a scripted one that costs nothing, PORT a free one. Start the
// service with RONDO_ALLOW_PRIVATE_WEBHOOKS=127.0.0.0/8, since the tools are on this machine.
import { createServer } from "node:http";
import { isSigned } from "./signature.js";

const { RONDO_URL: RONDO = "http://127.0.0.1:8080/v1", RONDO_KEY: KEY, MODEL = "scripted/shop", PORT = "0" } = process.env;
const SCRIPT = [
  { tool_calls: [{ name: "order_lookup", arguments: { order_id: "7" } }] },
  { tool_calls: [{ name: "order_note", arguments: { order_id: "7", text: "Two lamps: pack them well." } }] },
  "Order 7 has a note for the packers.",
];
const ORDERS = new Map([["7", { id: "7", lines: [{ article: "lamp", count: 2 }] }]]);
const ENDINGS = new Set(["run.completed", "run.incomplete", "run.failed", "run.cancelled"]);

// `arguments` is what a model wrote; who asks stands in tenant, subject, member and context
const TOOLS = {
  order_lookup: {
    description: "Finds an order with its lines.",
    properties: { order_id: { type: "string" } },
    answer(call) {
      const order = ORDERS.get(call.arguments.order_id);
      return order ? [200, { items: [order] }] : [404, { message: "There is no such order. Known is: 7." }];
    },
  },
  order_note: {
    description: "Writes a note on an order, for the packers.",
    properties: { order_id: { type: "string" }, text: { type: "string" } },
    answer: (call) => [200, { saved: true, by: call.context.user }],
  },
};
const secrets = {};
// by Idempotency-Key: a call that comes twice is carried out once; a real application keeps this in its database
const answered = new Map();

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const [status, value] = answer(request, Buffer.concat(chunks));
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
});

function answer(request, body) {
  const name = request.url.slice(1);
  if (!Object.hasOwn(TOOLS, name)) return [404, { message: "no such tool" }];
  if (!isSigned(secrets[name], request.headers, body)) return [401, { message: "not signed" }];
  const key = request.headers["idempotency-key"];
  if (!answered.has(key)) answered.set(key, TOOLS[name].answer(JSON.parse(body).data));
  return answered.get(key);
}

async function ask(method, path, body, headers = {}) {
  return fetch(RONDO + path, {
    method,
    headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json", ...headers },
    body: body && JSON.stringify(body),
  });
}

async function answerOf(response) {
  const value = await response.json();
  if (!response.ok) throw new Error(`${response.status} ${value.code}: ${value.detail}`);
  return value;
}

// a tool's secret is shown when it is new; for one that is there already, a new one is made
async function register(port) {
  for (const [name, { description, properties }] of Object.entries(TOOLS)) {
    const parameters = { type: "object", properties, required: Object.keys(properties) };
    const body = { description, parameters, url: `http://127.0.0.1:${port}/${name}` };
    const made = await answerOf(await ask("PUT", `/tools/${name}`, body));
    secrets[name] = made.secret ?? (await answerOf(await ask("POST", `/tools/${name}/rotate-secret`))).secret;
  }
}

// the id of the agent `order-notes`, made anew or brought to what stands here
async function agent() {
  const body = {
    name: "order-notes", model: MODEL, system_prompt: "You help the packers. Look at the order, and write a note on it.",
    event_triggers: ["order.paid"], allowed_tools: Object.keys(TOOLS), debounce_seconds: 0, config: { script: SCRIPT },
  };
  const response = await ask("POST", "/agents", body);
  if (response.status !== 409) return (await answerOf(response)).id;
  const { data } = await answerOf(await ask("GET", "/agents?limit=200"));
  const { id } = data.find((one) => one.name === body.name);
  await answerOf(await ask("PATCH", `/agents/${id}`, body));
  return id;
}

// prints what the run does, and comes back where the line was cut; gives the run at its end
async function follow(runId) {
  for (let last = "0"; ; ) {
    const response = await ask("GET", `/runs/${runId}/events`, undefined, { "last-event-id": last });
    let rest = "";
    for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("id: ")) last = line.slice(4);
        if (!line.startsWith("data: ")) continue;
        const event = JSON.parse(line.slice(6));
        console.log(event.type, event.tool ?? "");
        if (ENDINGS.has(event.type)) return event.run;
      }
    }
  }
}

async function main() {
  await new Promise((resolve) => server.listen(Number(PORT), "127.0.0.1", resolve));
  await register(server.address().port);
  console.log(`tools on http://127.0.0.1:${server.address().port}`);
  if (process.argv[2] === "serve") return;
  const agentId = await agent();
  const event = {
    event: "order.paid", tenant: { type: "shop", id: 1 }, subject: { type: "order", id: 7 },
    payload: { order_id: "7" }, context: { user: 42 },
  };
  const { fired } = await answerOf(await ask("POST", "/triggers", event));
  const run = await follow(fired.find((one) => one.agent_id === agentId).run_id);
  console.log("answer:", run.output);
  process.exit(run.status === "completed" ? 0 : 1);
}

await main();
