// The words of the wire, said in plain English.

export const PHASE = {
  warmup: "Warm-up", explore: "Exploring", hold: "Holding", fallback: "Fallback",
};

export const PHASE_LONG = {
  warmup: "sending everything to measure the dense baseline",
  explore: "measuring stronger factors, one at a time",
  hold: "settled; watching for drift",
  fallback: "sending everything because the controller was away or a step failed",
};

export const RULE = {
  start: "start", warmup: "warm-up", explore: "explore", climb: "climb", extend: "look longer",
  no_headroom: "no headroom", saturated: "saturated", too_strong: "too strong", top: "top of the ladder",
  hold: "hold", scale_down: "scale down", reexplore: "look again", fixed: "fixed", unusable: "window not usable", pinned: "pinned", paused: "paused", resumed: "resumed",
};

export const VERDICT = {
  untried: "not tried yet", trying: "being measured", passed: "keeps enough", too_strong: "keeps too little",
  chosen: "chosen",
};

export const EVENT = {
  registered: "registered", restarted: "restarted", gap: "gap", override: "order", fallback: "fallback", recovered: "recovered",
  nonfinite: "non-finite", failed: "failed step", note: "note",
};

/** Events that are faults, and get a mark besides their colour. */
export const FAULTS = new Set(["gap", "fallback", "nonfinite", "failed"]);

export const say = (words, key) => words[key] ?? key.replaceAll("_", " ");
