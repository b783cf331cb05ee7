import { shown } from './durations.js';
import { InvalidLimit } from './errors.js';

const DAY_S = 86_400;
/** No zone is further from UTC than this. */
const FURTHEST_S = 15 * 3_600;

/** The units of windows, and the longest that each can be and one hour more, so that a fast clock ends none early. */
const LONGEST: Record<string, string> = { day: '26h', week: '170h', month: '746h' };

/** The days, weeks from Monday, or months of a time zone's calendar. */
export class Calendar {
  readonly #format;
  readonly #unit;
  /** The window that was asked for last, in Unix seconds. */
  #window = { starts: 0, ends: 0 };
  /** The period for the server, as text. */
  readonly period: string;
  /** The unit in texts of rates. */
  readonly text: string;

  /** The unit is `d`, `day`, `days`, `week` or `month`. */
  constructor(unit: string, zone: string) {
    const name = unit.toLowerCase();
    this.#unit = name === 'd' || name === 'days' ? 'day' : name;
    if (!Object.hasOwn(LONGEST, this.#unit)) {
      throw new InvalidLimit(`with a zone, a rate is for each d, week or month, without a number, such as 1000/d; not ${shown(unit)}`);
    }
    try {
      const fields = { year: 'numeric', month: 'numeric', day: 'numeric' } as const;
      this.#format = new Intl.DateTimeFormat('en-US', { ...fields, timeZone: zone, calendar: 'gregory' });
    } catch (error) {
      throw new InvalidLimit(`zone must be a name of the IANA time zone database, not ${shown(zone)}`, { cause: error });
    }
    this.period = LONGEST[this.#unit];
    this.text = this.#unit === 'day' ? 'd' : this.#unit;
  }

  /** The window that this Unix time in milliseconds is in. */
  at(ms: number) {
    const now = ms / 1000;
    if (now < this.#window.starts || now >= this.#window.ends) {
      const [first, next] = this.#days(this.#day(ms));
      this.#window = { starts: this.#begin(first), ends: this.#begin(next) };
    }
    return this.#window;
  }

  /** The day that the calendar shows at a moment: the number of days since 1970. */
  #day(ms: number) {
    const parts = Object.fromEntries(this.#format.formatToParts(ms).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(parts.year, parts.month - 1, parts.day) / 1000 / DAY_S;
  }

  /** The first day of the window that has this day, and of the next window. */
  #days(day: number) {
    if (this.#unit === 'day') return [day, day + 1];
    const date = new Date(day * DAY_S * 1000);
    if (this.#unit === 'week') {
      const monday = day - ((date.getUTCDay() + 6) % 7);
      return [monday, monday + 7];
    }
    const [year, month] = [date.getUTCFullYear(), date.getUTCMonth()];
    return [Date.UTC(year, month, 1), Date.UTC(year, month + 1, 1)].map((ms) => ms / 1000 / DAY_S);
  }

  /**
   * The second at which a day begins. Intl shows the day at a moment, but not the moment at which a day begins: that is found by
   * bisection.
   */
  #begin(day: number) {
    let [before, after] = [day * DAY_S - FURTHEST_S, day * DAY_S + FURTHEST_S];
    while (after - before > 1) {
      const middle = Math.floor((before + after) / 2);
      if (this.#day(middle * 1000) < day) before = middle;
      else after = middle;
    }
    return after;
  }
}
