# node: files, processes, worker threads, http, signals, timers, dns, streams.
# needs: node
cat >main.js <<'J'
const fs = require('fs'), cp = require('child_process'), http = require('http'), { Worker, isMainThread, parentPort, workerData } = require('worker_threads'), zlib = require('zlib'), crypto = require('crypto'), assert = require('assert');
if (!isMainThread) { let x = 0; for (let i = 0; i < 3e6; i++) x = (x * 31 + i) | 0; parentPort.postMessage([workerData, x]); }
else (async () => {
  const done = await Promise.all([...Array(8).keys()].map(i => new Promise((ok, no) => { const w = new Worker(__filename, { workerData: i }); w.on('message', ok); w.on('error', no); })));
  console.log(JSON.stringify(done));
  for (let i = 0; i < 20; i++) { const r = cp.spawnSync('sh', ['-c', 'cat; exit ' + i], { input: 'in' + i }); console.log(r.status, String(r.stdout)); }
  const outs = await Promise.all([...Array(20).keys()].map(i => new Promise(ok => cp.exec('echo ' + i + '; kill -TERM $$', (e, o) => ok([e.signal, o.trim()]))))); console.log(JSON.stringify(outs));
  const f = cp.fork(__dirname + '/child.js'); f.send({ a: 1 }); console.log(await new Promise(ok => f.on('message', ok))); f.disconnect(); console.log('fork', await new Promise(ok => f.on('exit', ok)));
  await Promise.all([...Array(200).keys()].map(async i => { await fs.promises.writeFile('f' + i, 'x'.repeat(i * 100)); assert.equal((await fs.promises.readFile('f' + i)).length, i * 100); await fs.promises.unlink('f' + i); }));
  const server = http.createServer((q, s) => { s.end(q.url); }).listen(0, '127.0.0.1', async () => {
    const get = u => new Promise((ok, no) => http.get({ port: server.address().port, host: '127.0.0.1', path: u }, r => { let b = ''; r.on('data', d => b += d); r.on('end', () => ok(b)); }).on('error', no));
    let n = 0; for (let r = 0; r < 20; r++) n += (await Promise.all([...Array(50).keys()].map(i => get('/' + i)))).join('').length; console.log('http', n); server.close();
    console.log(crypto.createHash('sha256').update(zlib.gunzipSync(zlib.gzipSync(Buffer.alloc(1e6, 7)))).digest('hex'));
    process.on('SIGUSR2', () => { console.log('SIGUSR2'); process.exit(5); }); process.kill(process.pid, 'SIGUSR2'); setTimeout(() => {}, 10000);
  });
})();
J
echo "process.on('message', m => process.send({ got: m }))" >child.js
for i in 1 2 3; do node main.js 2>&1; echo "exit code $?"; done
printf 'const{io}=0||{};const t=require("node:test");for(let i=0;i<20;i++)t("t"+i,async()=>{await new Promise(r=>setTimeout(r,5))})\n' >t.test.js
node --test t.test.js 2>&1 | grep -E '^# (tests|pass|fail)'
