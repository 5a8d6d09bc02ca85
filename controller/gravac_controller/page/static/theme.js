// Dark, light or what the system says. Colors live in app.css; charts ask for them here.

const KEY = "gravac.theme";
const ORDER = ["system", "dark", "light"];
const root = document.documentElement;

export class Theme {
  constructor(button, onChange) {
    this.button = button;
    this.onChange = onChange;
    button.addEventListener("click", () => this.next());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changed());
    this.label();
  }

  get chosen() {
    return root.dataset.theme ?? "system";
  }

  next() {
    const theme = ORDER[(ORDER.indexOf(this.chosen) + 1) % ORDER.length];
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch { /* storage is switched off: the choice lasts until reload */ }
    this.changed();
  }

  changed() {
    colors.clear();
    this.label();
    this.onChange();
  }

  label() {
    this.button.textContent = `Colors: ${this.chosen}`;
  }
}

const colors = new Map();
let probe = null;

/** The color of a CSS variable as the canvas wants it, for the theme in force. */
export function cssColor(variable) {
  let found = colors.get(variable);
  if (found === undefined) {
    if (probe === null) {
      probe = document.createElement("span");
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = `var(${variable})`;
    found = getComputedStyle(probe).color;
    colors.set(variable, found);
  }
  return found;
}
