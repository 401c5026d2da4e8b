// The official TypeScript client uses a published workflow over each transport.
// Arguments: the folder of npm modules, the URL, then a command for stdio.
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const [modules, url, command, ...args] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(modules, '@modelcontextprotocol', 'client', 'dist', file)));
const { Client, StreamableHTTPClientTransport } = await load('index.mjs');
const { StdioClientTransport } = await load('stdio.mjs');

// The client has no WebSocket of its own; its transports are three functions.
class SocketTransport {
  async start() {
    this.socket = new WebSocket(url.replace('http', 'ws'), 'mcp');
    await new Promise((resolve, reject) => {
      this.socket.onopen = resolve;
      this.socket.onerror = () => reject(new Error('the WebSocket was refused'));
    });
    this.socket.onmessage = (event) => this.onmessage?.(JSON.parse(event.data));
    this.socket.onclose = () => this.onclose?.();
  }
  async send(message) { this.socket.send(JSON.stringify(message)); }
  async close() { this.socket.close(); }
}

const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(url)),
  websocket: () => new SocketTransport(),
  stdio: () => new StdioClientTransport({ command, args, env: process.env }),
};
const out = {};
for (const [name, make] of Object.entries(transports)) {
  const client = new Client({ name: 'test', version: '1' }, { capabilities: { elicitation: { form: {} } } });
  const asked = [], steps = [];
  client.setRequestHandler('elicitation/create', async (request) => {
    asked.push(request.params.message);
    return { action: 'accept', content: { where: 'home' } };
  });
  await client.connect(make());
  const { tools } = await client.listTools();
  const result = await client.callTool(
    { name: tools[0].name, arguments: { version: 'v2' } },
    { onprogress: (p) => steps.push(p.message) },
  );
  out[name] = { tools: tools.map((t) => t.name), asked, steps, outputs: result.structuredContent, failed: result.isError ?? false };
  await client.close();
}
console.log(JSON.stringify(out));
