/** An answer of a third party: a `Response` of fetch, or one of axios or `node:http`. */
export interface ThirdPartyResponse {
  status?: number;
  statusCode?: number;
  headers: object;
}

/** Too many requests, and service unavailable. */
const STOPS = [429, 503];
/** Resets above this are Unix times. */
const UNIX = 1e9;
/** The older forms of a date of HTTP, and what makes the usual one of them. */
const OLDER: [RegExp, string][] = [
  [/^(\w{3})\w*day, (\d\d)-(\w{3})-([0-6]\d) (\S+) GMT$/, '$1, $2 $3 20$4 $5 GMT'],
  [/^(\w{3}) (\w{3}) (\d\d) (\S+) (\d{4})$/, '$1, $3 $2 $5 $4 GMT'],
  [/^(\w{3}) (\w{3}) {2}(\d) (\S+) (\d{4})$/, '$1, 0$3 $2 $5 $4 GMT'],
];

/** The seconds from `now`, a Unix time, that the headers of an answer ask for; 0 for none. What is malformed counts as missing. */
export function askedSeconds({ status, statusCode = status, headers }: ThirdPartyResponse, now: number) {
  if (!STOPS.includes(Number(statusCode))) return 0;
  const fields = new Map<string, string>();
  for (const [name, value] of Symbol.iterator in headers ? headers as Iterable<[unknown, unknown]> : Object.entries(headers)) {
    const [key, text] = [String(name).toLowerCase(), String(value).trim()];
    fields.set(key, fields.has(key) ? `${fields.get(key)}, ${text}` : text);
  }
  const after = fields.get('retry-after');
  let seconds = number(after) ?? date(after, now) ?? longest(fields.get('ratelimit'));
  for (const start of ['ratelimit', 'x-ratelimit', 'x-rate-limit']) {
    if (seconds !== undefined || number(fields.get(`${start}-remaining`)) !== 0) continue;
    const reset = number(fields.get(`${start}-reset`));
    seconds = reset !== undefined && reset > UNIX ? reset - now : reset;
  }
  return Math.max(0, seconds ?? 0);
}

function number(text: string = '') {
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
}

function date(text: string | undefined = '', now: number) {
  const usual = OLDER.reduce((date, [form, parts]) => date.replace(form, parts), text);
  const ms = Date.parse(usual);
  // `Date.parse` also takes other forms, and the 31st of each month.
  return !Number.isNaN(ms) && new Date(ms).toUTCString() === usual ? ms / 1000 - now : undefined;
}

/** The longest `t` of the limits in a field `RateLimit` that have nothing left: `"day";r=0;t=30`. */
function longest(text: string = '') {
  const times = text.replace(/"(?:[^"\\]|\\.?)*(?:"|$)/g, '').split(',').flatMap((item) => {
    const { r, t } = Object.fromEntries(item.split(';').map((word) => word.trim().split(/=(.*)/)));
    return number(r) === 0 ? number(t) ?? [] : [];
  });
  return times.length ? Math.max(...times) : undefined;
}
