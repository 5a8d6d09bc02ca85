// Arithmetic of zooming. A range is [from, to] in units of the axis; `all` is the widest; null stands for it.

/** In (factor below 1) or out around a value. The same range when it cannot come any closer. */
export function closer(all, range, factor, middle) {
  const [from, to] = range ?? all;
  const found = [Math.max(all[0], middle - (middle - from) * factor), Math.min(all[1], middle + (to - middle) * factor)];
  if (found[0] <= all[0] && found[1] >= all[1]) return null;
  return found[1] - found[0] > 1e-6 * (all[1] - all[0]) ? found : range;
}

/** Along by a share of the range's width, to the right when positive, as far as there is something. */
export function along(all, [from, to], share) {
  const width = to - from;
  const start = Math.max(all[0], Math.min(all[1] - width, from + share * width));
  return [start, start + width];
}

/** The same windows on another axis: values `a` of the old one, `b` of the new; null when fewer than two are in it. */
export function translate(a, b, [from, to]) {
  const first = a.findIndex((value) => value >= from), last = a.findLastIndex((value) => value <= to);
  return first >= 0 && last > first ? [b[first], b[last]] : null;
}
