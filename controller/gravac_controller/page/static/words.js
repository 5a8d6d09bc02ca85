// Names of phases, rules, verdicts and events as the page shows them.

export const PHASE = {
  warmup: "Warm-up", explore: "Exploring", hold: "Holding", fallback: "Fallback",
};

export const PHASE_LONG = {
  warmup: "uncompressed, to measure the dense step",
  fallback: "uncompressed: the controller did not answer, or a step failed",
};

export const RULE = {
  start: "start", warmup: "warm-up", explore: "explore", climb: "climb", extend: "measure longer",
  no_headroom: "no headroom", saturated: "saturated", too_strong: "too strong", top: "top of the ladder",
  hold: "hold", scale_down: "scale down", reexplore: "explore again", fixed: "fixed", unusable: "window not usable", pinned: "pinned", paused: "paused", resumed: "resumed",
};

/** Rules by which an operator's order, not the policy, decides. */
export const OPERATOR_RULES = new Set(["pinned", "paused", "resumed"]);

export const VERDICT = {
  untried: "not tried yet", trying: "being measured", passed: "good enough", too_strong: "too strong",
  chosen: "chosen", pinned: "pinned", suspended: "the policy's choice",
};

export const EVENT = {
  registered: "registered", restarted: "restarted", gap: "gap", override: "order", fallback: "fallback", recovered: "recovered",
  nonfinite: "non-finite", failed: "failed step", note: "note",
};

/** Events that are faults; they get a mark in addition to their color. */
export const FAULTS = new Set(["gap", "fallback", "nonfinite", "failed"]);

export const nameOf = (words, key) => words[key] ?? key.replaceAll("_", " ");
