// The specification on node:http and the package `ws`, as a careful Node developer would write it: each message is
// encoded once and kept as text. Nothing survives a restart; no limits, tokens or metrics.
'use strict';
const crypto = require('crypto');
const http = require('http');
const { WebSocketServer } = require('ws');

const [port, pingSeconds] = process.argv.slice(2).map(Number);
const MAX_LENGTH = 131072;
const sessions = new Map();

const newSession = () => ({
  prompts: new Map(), pending: new Map(), responses: new Map(), sockets: new Set(), history: [], waiting: new Set(),
});
const isText = (value) => typeof value === 'string' && value.length <= MAX_LENGTH;
const pendingOf = (session) => '[' + [...session.pending.values()].join(',') + ']';

function broadcast(session, text) {
  const bytes = Buffer.from(text);
  for (const socket of session.sockets) socket.send(bytes, { binary: false });
}

function postPrompt(m) {
  if (typeof m.session_id !== 'string' || !isText(m.prompt)) return [400, '{"error":"Invalid field"}'];
  let session = sessions.get(m.session_id);
  if (!session) sessions.set(m.session_id, session = newSession());
  const id = m.client_msg_id || crypto.randomUUID();
  if (!session.prompts.has(id)) {
    const text = JSON.stringify({
      session_id: m.session_id, client_msg_id: id, prompt: m.prompt, metadata: m.metadata, ts: Date.now(),
    });
    session.prompts.set(id, text);
    session.pending.set(id, text);
    session.history.push('{"type":"prompt","data":' + text + '}');
    if (session.waiting.size) {
      const all = pendingOf(session);
      for (const wake of session.waiting) wake(all);
    }
  }
  return [200, JSON.stringify({ stored: true, client_msg_id: id })];
}

function postResponse(m) {
  if (typeof m.session_id !== 'string' || !isText(m.text)) return [400, '{"error":"Invalid field"}'];
  const session = sessions.get(m.session_id);
  if (!session || !session.prompts.has(m.client_msg_id)) return [404, '{"error":"Not found"}'];
  const id = m.assistant_msg_id || crypto.randomUUID();
  if (!session.responses.has(id)) {
    const text = JSON.stringify({
      session_id: m.session_id, assistant_msg_id: id, client_msg_id: m.client_msg_id, text: m.text,
      metadata: m.metadata, ts: m.ts || Date.now(),
    });
    session.responses.set(id, text);
    session.pending.delete(m.client_msg_id);
    session.history.push('{"type":"assistant","data":' + text + '}');
    broadcast(session, '{"type":"message","data":' + text + '}');
  }
  return [200, JSON.stringify({ ok: true, assistant_msg_id: id, delivered: true })];
}

function poll(session, query, answer) {
  if (session.pending.size || query.get('wait') === 'false') return answer(200, pendingOf(session));
  const wake = (text) => {
    clearTimeout(timer);
    session.waiting.delete(wake);
    answer(200, text);
  };
  const timer = setTimeout(wake, Number(query.get('timeout') || 30) * 1000, '[]');
  session.waiting.add(wake);
}

function page(id, session, query) {
  const limit = Number(query.get('limit') || 100);
  const offset = Number(query.get('offset') || 0);
  const messages = session.history.slice(offset, offset + limit).join(',');
  const total = session.history.length;
  return `{"session_id":${JSON.stringify(id)},"messages":[${messages}],"total":${total},"limit":${limit},"offset":${offset}}`;
}

function read(request, handler, answer) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    let message;
    try { message = JSON.parse(Buffer.concat(parts).toString()); } catch { return answer(400, '{"error":"Invalid JSON"}'); }
    answer(...handler(message));
  });
}

const server = http.createServer({ keepAliveTimeout: 60000 }, (request, response) => {
  const answer = (status, body) => {
    response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
    response.end(body);
  };
  if (request.method === 'POST' && request.url === '/prompt') return read(request, postPrompt, answer);
  if (request.method === 'POST' && request.url === '/response') return read(request, postResponse, answer);
  if (request.url === '/healthz') return answer(200, JSON.stringify({ ok: true, timestamp: Date.now() }));
  const [path, search] = request.url.split('?');
  const [, kind, id] = path.split('/');
  const session = sessions.get(id);
  if (!session) return answer(404, '{"error":"Session does not exist"}');
  if (kind === 'prompts') return poll(session, new URLSearchParams(search), answer);
  if (kind === 'messages') return answer(200, page(id, session, new URLSearchParams(search)));
  return answer(404, '{"error":"Not found"}');
});

const handshakes = new WebSocketServer({ noServer: true, perMessageDeflate: false });
server.on('upgrade', (request, socket, head) => {
  const session = sessions.get(request.url.slice('/ws/'.length));
  if (!session) return socket.destroy();
  handshakes.handleUpgrade(request, socket, head, (ws) => {
    session.sockets.add(ws);
    ws.on('close', () => session.sockets.delete(ws));
    ws.on('error', () => {});
  });
});

setInterval(() => {
  const text = JSON.stringify({ type: 'ping', ts: Date.now() });
  for (const session of sessions.values()) broadcast(session, text);
}, pingSeconds * 1000);
server.listen(port, '127.0.0.1', 4096);
