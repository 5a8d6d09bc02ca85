// Mouse, wheel and touch on a chart: pick a window, pan, zoom.

const NEAR_PX = 8;
const DOUBLE_MS = 250;  // while zoomed, a click may be the first half of the double-click that shows all
const WHEEL_STEP = 1.0015;

/** Dragging zooms (by uPlot); with shift it pans (here). */
export const bind = {
  mousedown: (u, target, begin) => (event) => {
    if (!event.shiftKey) begin(event);
    return null;
  },
};

/** group: {pickNear(value, tolerance), pan(share), zoomAround(factor, value), zoomed}. Values in units of the axis. */
export function gestures(u, group) {
  const { over } = u, width = () => over.clientWidth;
  const valueAt = (event) => u.posToVal(event.clientX - over.getBoundingClientRect().left, "x");
  let picking = 0;
  over.addEventListener("click", (event) => {
    clearTimeout(picking);
    if (event.shiftKey || event.detail > 1) return;
    const value = valueAt(event), reach = u.posToVal(NEAR_PX, "x") - u.posToVal(0, "x");
    picking = setTimeout(() => group.pickNear(value, reach), group.zoomed ? DOUBLE_MS : 0);
  });
  over.addEventListener("wheel", (event) => {
    const along = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    if (event.ctrlKey || event.metaKey) group.zoomAround(WHEEL_STEP ** event.deltaY, valueAt(event));
    else if (along !== 0 && group.zoomed) group.pan(along / width());
    else return;  // the page scrolls
    event.preventDefault();
  }, { passive: false });

  const held = new Map();  // pointers that are down, by id, each with its last place
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && !event.shiftKey) return;
    held.set(event.pointerId, event.clientX);
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (before === undefined) return;
    held.set(event.pointerId, event.clientX);
    if (held.size === 2) pinch(event, before);
    else if (event.pointerType === "mouse" || group.zoomed) group.pan((before - event.clientX) / width());
    else u.setCursor({ left: event.clientX - over.getBoundingClientRect().left, top: 20 });
  });
  for (const kind of ["pointerup", "pointercancel"]) over.addEventListener(kind, (event) => held.delete(event.pointerId));

  /** Two fingers: what is under them stays under them. */
  function pinch(event, before) {
    const [other] = [...held].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
    const [was, is] = [Math.abs(before - other), Math.abs(event.clientX - other)];
    if (was > 10 && is > 10) group.zoomAround(was / is, valueAt({ clientX: (event.clientX + other) / 2 }));
  }
}
