// Formatting of numbers and times. Unknown (null) is "–", never 0.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const NONE = "–";

export const known = (value) => value !== null && value !== undefined;
export const count = (value) => (known(value) ? whole.format(value) : NONE);

/** Digits that mean something: 0.012, 0.12, 1.23, 12.3, 1,230. The same rule as the policy's reasons below 1. */
export function digits(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return whole.format(value);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.0995) return value.toFixed(2);
  if (size >= 0.001) return value.toFixed(3);
  return value.toExponential(1);
}

/** Four digits, for numbers that move slowly, such as a loss. */
export const fine = (value) => (known(value) ? (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e4 ? value.toPrecision(4) : digits(value)) : NONE);

export const tick = (value) => (Math.abs(value) >= 1e5 ? value.toExponential(0) : String(Number(value.toPrecision(3))));
export const tickCount = (value) => (value >= 1e5 ? `${whole.format(value / 1e3)}k` : whole.format(value));
export const tickPercent = (value) => `${Math.round(value * 100)} %`;
export const tickSeconds = (value) => seconds(value).replace(/\.0+(?= )/, "").replace(/(\.\d*?)0+(?= )/, "$1");

/** A large count: "3.48 M". */
export function large(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return count(value);
}

/** A compression factor: "dense", "CF 40", "CF 1.5". */
export const cf = (value) => factor(value, (text) => `CF ${text}`);

/** How many times fewer bytes than dense: "dense", "40×", "1.5×". */
export const strength = (value) => factor(value, (text) => `${text}×`);

function factor(value, words) {
  if (!known(value)) return NONE;
  return value === 1 ? "dense" : words(trimmed(value));
}

/** What a decision (slim) changed: "dense → 3 levels, Huffman", or the plan alone. */
export const planChange = ({ before, plan }) => (!known(before) || before === plan ? plan : `${before} → ${plan}`);

/** A statistical efficiency: "0.995". */
export const ratio = (value) => (known(value) ? String(Number(value.toPrecision(3))) : NONE);

const trimmed = (value) => (value >= 100 ? whole.format(value) : String(Number(value.toPrecision(3))));

/** A ratio of two quantities: "4.2×". */
export const times = (value) => (known(value) ? `${digits(value)}×` : NONE);

/** How many times fewer bytes than dense a plan takes, as the job registered it; null: it did not. */
export function registered({ plans, compressor }, codec, value) {
  const name = (known) => known ?? compressor;
  const bytesOf = (fits) => plans.find(fits)?.payload_bytes;
  return bytesOf((cost) => cost.cf === 1)
    / bytesOf((cost) => cost.cf === value && (value === 1 || name(cost.codec) === name(codec))) || null;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let size = Math.abs(value), unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  const text = unit === 0 ? whole.format(size) : digits(size);
  return `${value < 0 ? "−" : ""}${text} ${units[unit]}`;
}

/** A short time inside a step: "740 µs", "370 ms", "1.48 s". */
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
}

/** A long time: "42 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function duration(value) {
  if (!known(value)) return NONE;
  const total = Math.max(0, Math.round(value));
  if (total < 60) return `${total} s`;
  if (total < 3600) return pair(total, 60, "min", 1, "s");
  if (total < 86400) return pair(total, 3600, "h", 60, "min");
  return pair(total, 86400, "d", 3600, "h");
}

function pair(total, large, largeName, small, smallName) {
  const rest = Math.floor((total % large) / small);
  return `${Math.floor(total / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** Wall clock of Unix seconds, with the day when it is not today. */
export function clock(unix, now = Date.now() / 1000) {
  if (!known(unix)) return NONE;
  const then = new Date(unix * 1000);
  const text = clockFormat.format(then);
  return then.toDateString() === new Date(now * 1000).toDateString() ? text : `${dayFormat.format(then)} ${text}`;
}

export function percent(value) {
  if (!known(value)) return NONE;
  return `${(value * 100).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)} %`;
}

/** "100 Mbit/s", "2.5 Gbit/s". */
export function bitrate(bits) {
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let size = bits, unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${Number(size.toPrecision(3))} ${units[unit]}`;
}
