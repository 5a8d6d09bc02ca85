// Downsampling: where a pixel covers several windows, their minimum and maximum are drawn.

/** First and last place of `x` (ascending) inside a range, one more on either side so that lines go on to the edge. */
export function inside(x, range) {
  const last = x.length - 1;
  if (range === null) return [0, last];
  return [Math.max(0, above(x, range[0]) - 1), Math.min(last, above(x, range[1]))];
}

/** The first place whose value is above `value`; the length when there is none. */
function above(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The place whose value is nearest to `value`; -1 when there is none. */
export function nearest(x, value) {
  const after = above(x, value);
  if (after === 0 || after === x.length) return Math.min(after, x.length - 1);
  return value - x[after - 1] <= x[after] - value ? after - 1 : after;
}

/**
 * [x, ...series] between two places, at most two entries for each of `buckets` equal parts: least and greatest value
 * of the part, in the order they came. Unknown (null) only where all of a part is; undefined, which lines pass over,
 * where nothing of a part belongs to the series.
 */
export function thin(x, series, [from, to], buckets) {
  const count = to - from + 1;
  if (count <= 2 * buckets) {
    return count === x.length ? [x, ...series] : [x, ...series].map((column) => column.slice(from, to + 1));
  }
  const starts = Array.from({ length: buckets + 1 }, (_, i) => from + Math.floor((i * count) / buckets));
  const ends = [];
  for (let i = 0; i < buckets; i += 1) ends.push(x[starts[i]], x[starts[i + 1] - 1]);
  return [ends, ...series.map((column) => extremes(column, starts))];
}

function extremes(column, starts) {
  const found = [];
  for (let i = 0; i + 1 < starts.length; i += 1) {
    let least = null, greatest = null, leastAt = 0, greatestAt = 0, hole;
    for (let at = starts[i]; at < starts[i + 1]; at += 1) {
      const value = column[at];
      if (value === null) hole = null;
      if (value === null || value === undefined) continue;
      if (least === null || value < least) [least, leastAt] = [value, at];
      if (greatest === null || value > greatest) [greatest, greatestAt] = [value, at];
    }
    if (least === null) found.push(hole, hole);
    else if (leastAt <= greatestAt) found.push(least, greatest);
    else found.push(greatest, least);
  }
  return found;
}
