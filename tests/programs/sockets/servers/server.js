// An HTTP server and client of Node.js: `node server.js serve PORT`, `node server.js ask HOST PORT REQUESTS`.
'use strict';
const http = require('http');

const SMALL = 800, BIG = 3000000;

function serve(port) {
  const server = http.createServer((request, response) => {
    if (request.method === 'POST') {
      let length = 0;
      request.on('data', (part) => { length += part.length; });
      request.on('end', () => response.end(String(length)));
    } else {
      response.end(Buffer.alloc(request.url === '/big' ? BIG : SMALL, 'x'));
    }
  });
  server.listen(Number(port));
}

// Many requests on some connections, each answer in full; then bodies, on a connection each.
function ask(host, port, requests) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
  const fetch = (path, body, agent) => new Promise((resolve, reject) => {
    const request = http.request({ host, port, path, agent, method: body ? 'POST' : 'GET' }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
    });
    request.on('error', reject);
    request.end(body);
  });
  const expect = (holds, what) => { if (!holds) throw new Error(`${what} is wrong`); };
  const many = Array.from({ length: 20 }, async () => {
    for (let n = 0; n < requests / 20; n++) expect((await fetch('/', null, agent)).length === SMALL, 'an answer');
  });
  Promise.all(many).then(async () => {
    for (let n = 0; n < 5; n++) {
      expect((await fetch('/big', null, false)).length === BIG, 'a big answer');
      expect(String(await fetch('/', Buffer.alloc(2000000), false)) === '2000000', 'an answer to a body');
    }
    console.log('all answers are right');
    process.exit(0);
  }).catch((error) => { console.log(error); process.exit(1); });
}

const [mode, ...rest] = process.argv.slice(2);
({ serve, ask })[mode](...rest);
