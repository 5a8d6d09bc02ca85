// Runs before the first paint, so that a chosen theme does not flash the other one. Everything else: theme.js.
try {
  const chosen = localStorage.getItem("gravac.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off: the system setting rules */ }
