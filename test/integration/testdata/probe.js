// Runs inside the sandbox before the server's own code: tries each target of
// LAB_TARGETS as an ordinary program would, without any proxy setting, and
// reports one JSON line for each on stderr.
const { execFile } = require('node:child_process');
const dgram = require('node:dgram');
const dns = require('node:dns');
const https = require('node:https');
const http2 = require('node:http2');
const net = require('node:net');
const os = require('node:os');

const code = (e) => (e && ((e.cause && (e.cause.code || (e.cause.errors && e.cause.errors[0] && e.cause.errors[0].code))) || e.code || e.message)) || String(e);

// hostPort splits HOST:PORT, with brackets around an IPv6 literal.
const hostPort = (t) => {
  const i = t.lastIndexOf(':');
  return { host: t.slice(0, i).replace(/^\[|\]$/g, ''), port: Number(t.slice(i + 1)) };
};

const ways = {
  fetch: async (t) => (await (await fetch(t)).text()).trim(),
  https: (t) => new Promise((res, rej) => {
    https.get(t, (r) => { let b = ''; r.on('data', (d) => { b += d; }); r.on('end', () => res(b.trim())); }).on('error', rej);
  }),
  http2: (t) => new Promise((res, rej) => {
    const c = http2.connect(t); c.on('error', rej);
    const r = c.request({ ':path': '/' }); let b = '';
    r.on('error', rej); r.on('data', (d) => { b += d; }); r.on('end', () => { c.close(); res(b.trim()); });
    r.end();
  }),
  connect: (t) => new Promise((res, rej) => {
    const s = net.connect(hostPort(t));
    s.on('error', rej); s.once('data', (d) => { s.destroy(); res(String(d).trim()); });
  }),
  curl: (t) => new Promise((res, rej) => {
    execFile('curl', ['-sS', '--max-time', '10', '--cacert', process.env.NODE_EXTRA_CA_CERTS, t], (e, out, err) => (e ? rej(new Error(`curl ${e.code}: ${err.trim()}`)) : res(out.trim())));
  }),
  udp: (t) => new Promise((res, rej) => {
    const { host, port } = hostPort(t);
    const s = dgram.createSocket(host.includes(':') ? 'udp6' : 'udp4');
    s.on('error', (e) => { s.close(); rej(e); }); s.on('message', (m) => { s.close(); res(String(m)); });
    // A refusal of the first datagram shows at the second.
    s.connect(port, host, (e) => { if (e) return rej(e); s.send('x'); setTimeout(() => { try { s.send('y'); } catch (_) { /* refused already */ } }, 50); });
  }),
  lookup: (t) => new Promise((res, rej) => dns.lookup(t, { all: true }, (e, a) => (e ? rej(e) : res(a.map((x) => x.address).sort().join(' '))))),
  uname: async () => `${os.release()} ${os.version()}`,
};

const bound = (p) => Promise.race([p, new Promise((_, rej) => setTimeout(() => rej(new Error('TIMEOUT')), 15000))]);

(async () => {
  for (const [way, target] of JSON.parse(process.env.LAB_TARGETS)) {
    const start = process.hrtime.bigint();
    const r = { way, target };
    try { r.got = await bound(ways[way](target)); } catch (e) { r.error = code(e); }
    r.ms = Number(process.hrtime.bigint() - start) / 1e6;
    require('node:fs').writeSync(2, `PROBE ${JSON.stringify(r)}\n`);
  }
  process.exit(0);
})();
