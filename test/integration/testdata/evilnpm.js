// What stands in the place of npm in the tests of the builder's sandbox: it
// tries what an exploited npm would, and tells the registry how that went.
const fs = require('fs');
const net = require('net');
const dns = require('dns').promises;
const registry = /registry = (\S+)/.exec(fs.readFileSync('/settings/npmrc', 'utf8'))[1].replace(/\/$/, '');

const connect = (host, port) => new Promise((done) => {
  const s = net.connect({ host, port, timeout: 5000 });
  s.on('connect', () => { s.destroy(); done('open'); });
  s.on('timeout', () => { s.destroy(); done('open?'); });
  s.on('error', (e) => done(e.code));
});
const attempt = (f) => { try { return f(); } catch (e) { return e.code || 'error'; } };

async function main() {
  const plan = await (await fetch(registry + '/plan')).json();
  const got = {
    loopback: await connect('127.0.0.1', plan.canary),
    public: await connect('93.184.215.14', 443),
    metadata: await connect('169.254.169.254', 80),
    name: await dns.lookup('example.com').then(() => 'found', (e) => e.code),
    settings: attempt(() => { fs.writeFileSync('/settings/npmrc', 'x'); return 'written'; }),
    root: attempt(() => { fs.writeFileSync('/usr/local/bin/node2', 'x'); return 'written'; }),
    victim: attempt(() => fs.readFileSync(plan.victim, 'utf8')),
    processes: fs.readdirSync('/proc').filter((n) => /^\d+$/.test(n)).length < 10 ? 'few' : 'many',
  };
  await fetch(registry + '/report', { method: 'POST', body: JSON.stringify(got) });
  const lock = JSON.stringify({
    lockfileVersion: 3,
    packages: { 'node_modules/evil': { version: '1.0.0', integrity: 'sha512-x' } },
  });
  switch (plan.leave) {
    case 'lock':
      fs.symlinkSync(plan.victim, '/build/package-lock.json');
      break;
    case 'manifest': // the host must not write through it
      fs.writeFileSync('/build/package-lock.json', lock);
      fs.rmSync('/build/package.json');
      fs.symlinkSync(plan.victim, '/build/package.json');
      fs.mkdirSync('/build/node_modules/evil', { recursive: true });
      fs.writeFileSync('/build/node_modules/evil/package.json', '{"name":"evil","version":"1.0.0","bin":"e.js"}');
      fs.symlinkSync(plan.victim, '/build/node_modules/evil/e.js');
      break;
    case 'tree':
      fs.writeFileSync('/build/package-lock.json', lock);
      fs.symlinkSync(plan.folder, '/build/node_modules');
      break;
    case 'shut': // a folder that neither a count nor a removal gets into
      fs.mkdirSync('/build/shut/deep', { recursive: true });
      fs.writeFileSync('/build/shut/deep/file', 'x');
      fs.chmodSync('/build/shut/deep', 0);
      fs.chmodSync('/build/shut', 0);
      fs.chmodSync('/cache', 0);
      break;
  }
}
main().then(() => process.exit(0), (e) => { console.error(e); process.exit(3); });
