/*
 * Colours: the style sheet declares them as custom properties, for light and dark; scripts read them from there.
 *
 * The categorical palette is that of Okabe and Ito (2008), "Color Universal Design", which readers with any form of
 * colour blindness distinguish. Marks and texts repeat each distinction that colours make.
 */
(() => {
  const CATEGORIES = 8;
  const probe = document.createElement("span");
  let cache = new Map();

  /** The current value of the custom property `--name`, as `rgb(…)`. */
  function color(name) {
    if (!cache.has(name)) {
      if (!probe.isConnected) {
        probe.hidden = true;
        document.body.append(probe);
      }
      probe.style.color = `var(--${name})`;
      cache.set(name, getComputedStyle(probe).color);
    }
    return cache.get(name);
  }

  /** The reference to the colour of a category, for elements and charts; categories beyond the palette share grey. */
  page.category = (index) => (index < CATEGORIES ? `var(--category-${index})` : "var(--category-other)");

  /** The value of a reference such as "var(--category-1)", or of any other CSS colour, for a canvas. */
  page.resolve = (css) => {
    const name = /^var\(--([\w-]+)\)$/.exec(css);
    return name ? color(name[1]) : css;
  };

  function changed() {
    cache = new Map();
    page.emit("theme");
  }

  /** Switch between light, dark, and the choice of the system. */
  page.toggleTheme = () => {
    const root = document.documentElement;
    const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    changed();
  };

  page.color = color;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  matchMedia("print").addEventListener("change", changed);

  document.addEventListener("DOMContentLoaded", () => {
    const header = document.querySelector("body > header");
    if (!header) return;
    header.append(page.el("button", {
      class: "quiet theme", type: "button", text: "◐", title: "Light or dark", "aria-label": "Light or dark", onclick: page.toggleTheme,
    }));
  });
})();
