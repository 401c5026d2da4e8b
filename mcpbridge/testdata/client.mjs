// Drives every feature of the aggregated endpoint with the TypeScript SDK and
// prints what came of it: node client.mjs SDK URL
const [sdk, url] = process.argv.slice(2);
const { Client } = await import(`${sdk}/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
const types = await import(`${sdk}/types.js`);

const client = new Client({ name: "ts", version: "1" }, {
  capabilities: { roots: { listChanged: true }, sampling: {}, elicitation: { form: {}, url: {} } },
});
client.setRequestHandler(types.CreateMessageRequestSchema, () => ({ model: "m", role: "assistant", content: { type: "text", text: "sampled" } }));
client.setRequestHandler(types.ListRootsRequestSchema, () => ({ roots: [{ uri: "file:///mine" }] }));
client.setRequestHandler(types.ElicitRequestSchema, ({ params }) =>
  params.mode === "url" ? { action: "accept" } : { action: "accept", content: { name: "me" } });

// heard resolves with what was heard first, before or after it is asked for.
const waiting = {};
const slot = (name) => (waiting[name] ??= Promise.withResolvers?.() ?? (() => { let resolve; const promise = new Promise((r) => { resolve = r; }); return { promise, resolve }; })());
const hear = (schema, name, take) => client.setNotificationHandler(schema, ({ params }) => { slot(name).resolve(take(params)); });
hear(types.ResourceUpdatedNotificationSchema, "updated", (p) => p.uri);
hear(types.LoggingMessageNotificationSchema, "logged", (p) => `${p.logger} ${p.data}`);
hear(types.ToolListChangedNotificationSchema, "tools changed", () => true);
hear(types.PromptListChangedNotificationSchema, "prompts changed", () => true);
hear(types.ResourceListChangedNotificationSchema, "resources changed", () => true);

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const work = (what, options) => client.callTool({ name: "mcp_full_work", arguments: { do: what } }, undefined, options);
const text = async (what) => (await work(what)).content[0].text;
const out = {};

out.tools = (await client.listTools()).tools.map((t) => t.name).sort();
for (const what of ["sample", "elicit", "url", "roots"]) out[what] = await text(what);
out.structured = (await work("structured")).structuredContent;
const progress = [];
await work("progress", { onprogress: (p) => progress.push(p.message) });
out.progress = progress;

let pages = 0, resources = [], cursor;
do {
  const page = await client.listResources({ cursor });
  pages++;
  resources.push(...page.resources.map((r) => r.uri));
  cursor = page.nextCursor;
} while (cursor);
out.pages = pages;
out.resources = [resources.length, resources.filter((u) => !u.startsWith("mcp-many")).sort()];
out.templates = (await client.listResourceTemplates()).resourceTemplates.map((t) => t.uriTemplate);
out.read = (await client.readResource({ uri: "mcp-full+test://t/x" })).contents[0];
out.prompts = (await client.listPrompts()).prompts.map((p) => p.name);
out.prompt = (await client.getPrompt({ name: "mcp_full_ask", arguments: { q: "why" } })).messages[0].content.uri;
out.completion = (await client.complete({ ref: { type: "ref/prompt", name: "mcp_full_ask" }, argument: { name: "q", value: "v" } })).completion.values;

await client.setLoggingLevel("warning");
await client.subscribeResource({ uri: "mcp-full+test://a" });
await work("update");
out.updated = await slot("updated").promise;
await work("log");
out.logged = await slot("logged").promise;
await work("more");
await work("tools");
for (const what of ["tools", "prompts", "resources"]) out[`${what} changed`] = await slot(`${what} changed`).promise;

// A call that is cancelled says so by an update.
delete waiting.updated;
const cancel = new AbortController();
const begun = work("wait", { signal: cancel.signal, onprogress: () => cancel.abort("enough") }).then(() => "an answer", () => "cancelled");
out.cancelled = [await begun, await slot("updated").promise];
await client.unsubscribeResource({ uri: "mcp-full+test://a" });

const task = await client.request({ method: "tools/call", params: { name: "mcp_tasks_slow", arguments: {}, task: { ttl: 60000 } } }, types.CreateTaskResultSchema);
const id = task.task.taskId;
out.tasks = [
  task.task.status, (await client.experimental.tasks.getTask(id)).taskId === id,
  (await client.experimental.tasks.getTaskResult(id, types.CallToolResultSchema)).structuredContent,
  (await client.experimental.tasks.listTasks()).tasks.length, (await client.experimental.tasks.cancelTask(id)).status,
];
await client.close();
console.log(JSON.stringify(out));
