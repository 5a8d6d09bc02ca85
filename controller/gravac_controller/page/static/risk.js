// The light: how much compression puts learning at risk, why, and by which rule. The controller judges (gravac.signals.risk).

import { $, el, setHidden, setText } from "./dom.js";
import { say } from "./words.js";

const WORD = { none: "no risk", low: "low", raised: "raised", high: "high", unknown: "unknown" };

export function showRisk({ risk }) {
  setHidden($("risk"), risk === null);
  if (risk === null) return;
  $("risk").dataset.level = risk.level;
  setText($("risk-word"), say(WORD, risk.level));
  setText($("risk-rule"), risk.rule);
  const list = $("risk-because"), key = JSON.stringify(risk.because);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...risk.because.map((sentence) => el("li", {}, sentence)));
}
