// Calls a command on a new connection. Applications take a real client, such as ioredis.
import net from 'node:net';

/** The server answered with an error. */
export class ReplyError extends Error {}

// The reply that begins at `at`, and where it ends, or undefined if it is not there as a whole.
function parse(data, at) {
  const end = data.indexOf('\r\n', at);
  if (end < 0) return undefined;
  const [kind, rest] = [String.fromCharCode(data[at]), data.toString('utf8', at + 1, end)];
  if (kind === '+' || kind === '-') return [kind === '+' ? rest : new ReplyError(rest), end + 2];
  if (kind === ':' || rest === '-1') return [kind === ':' ? Number(rest) : null, end + 2];
  const last = end + 2 + Number(rest);
  if (kind === '$') return data.length < last + 2 ? undefined : [data.toString('utf8', end + 2, last), last + 2];
  const items = [];
  let next = end + 2;
  while (items.length < Number(rest)) {
    const item = parse(data, next);
    if (!item) return undefined;
    items.push(item[0]);
    next = item[1];
  }
  return [items, next];
}

/** The reply: an integer, text, null, or an array. The address is redis://:password@host:6379 or unix:///path. */
export function call(url, ...words) {
  const at = new URL(url);
  const host = at.hostname.replace(/^\[|\]$/g, '') || '127.0.0.1';
  const unix = at.protocol === 'unix:';
  const socket = net.connect(unix ? { path: decodeURIComponent(at.pathname) } : { host, port: Number(at.port || 6379) });
  const calls = at.password ? [['AUTH', decodeURIComponent(at.username) || 'default', decodeURIComponent(at.password)], words] : [words];
  return new Promise((resolve, reject) => {
    let data = Buffer.alloc(0);
    socket.on('data', (chunk) => {
      data = Buffer.concat([data, chunk]);
      for (let reply; (reply = parse(data, 0)); data = data.subarray(reply[1])) {
        calls.shift();
        if (reply[0] instanceof ReplyError) reject(reply[0]);
        else if (calls.length === 0) resolve(reply[0]);
        else continue;
        return socket.destroy();
      }
    });
    socket.on('error', reject).on('close', () => reject(new Error('the server has closed the connection')));
    const part = (word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`;
    for (const command of calls) socket.write(`*${command.length}\r\n${command.map((word) => part(String(word))).join('')}`);
  });
}
