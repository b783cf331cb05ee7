/**
 * An answer of a third party: a `Response` of fetch, or one of axios or `node:http`.
 * @typedef {{ status?: number, statusCode?: number, headers: object }} ThirdPartyResponse
 */

/** Too many requests, and service unavailable. */
const STOPS = [429, 503];
/** Resets above this are Unix times. */
const UNIX = 1e9;
/** The older forms of a date of HTTP, and what makes the usual one of them. @type {[RegExp, string][]} */
const OLDER = [
  [/^(\w{3})\w*day, (\d\d)-(\w{3})-([0-6]\d) (\S+) GMT$/, '$1, $2 $3 20$4 $5 GMT'],
  [/^(\w{3}) (\w{3}) (\d\d) (\S+) (\d{4})$/, '$1, $3 $2 $5 $4 GMT'],
  [/^(\w{3}) (\w{3}) {2}(\d) (\S+) (\d{4})$/, '$1, 0$3 $2 $5 $4 GMT'],
];

/**
 * The seconds that the headers of an answer ask for; 0 if they ask for none. What is malformed counts as missing.
 * @param {ThirdPartyResponse} response @param {number} now the Unix time in seconds
 */
export function askedSeconds({ status, statusCode = status, headers }, now) {
  if (!STOPS.includes(Number(statusCode))) return 0;
  /** @type {Map<string, string>} */
  const fields = new Map();
  for (const [name, value] of Symbol.iterator in headers ? /** @type {Iterable<[unknown, unknown]>} */ (headers) : Object.entries(headers)) {
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

/** @param {string} [text] */
function number(text = '') {
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : undefined;
}

/** @param {string | undefined} text @param {number} now */
function date(text = '', now) {
  const usual = OLDER.reduce((date, [form, parts]) => date.replace(form, parts), text);
  const ms = Date.parse(usual);
  // `Date.parse` also takes other forms, and the 31st of each month.
  return !Number.isNaN(ms) && new Date(ms).toUTCString() === usual ? ms / 1000 - now : undefined;
}

/** The longest `t` of the limits in a field `RateLimit` that have nothing left: `"day";r=0;t=30`. @param {string} [text] */
function longest(text = '') {
  const times = text.replace(/"(?:[^"\\]|\\.?)*(?:"|$)/g, '').split(',').flatMap((item) => {
    const { r, t } = Object.fromEntries(item.split(';').map((word) => word.trim().split(/=(.*)/)));
    return number(r) === 0 ? number(t) ?? [] : [];
  });
  return times.length ? Math.max(...times) : undefined;
}
