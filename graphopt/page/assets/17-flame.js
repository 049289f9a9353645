/* A tree as nested bars: the width of an entry is its value, its children are below it. */
(() => {
  const { figure, text, roving } = page.chartParts;
  const ROW = 22;
  const MINIMUM = 1.5; // narrower entries, in pixels, are not drawn

  function depth(entry) {
    return 1 + Math.max(0, ...(entry.children || []).map(depth));
  }

  function hue(name) {
    let hash = 0;
    for (const character of name) hash = (hash * 31 + character.codePointAt(0)) % 9973;
    return page.category(hash % 8);
  }

  page.charts.flame = (element, data, options = {}) => {
    const format = options.format || page.format.seconds;
    const entries = new Map(); // drawn element → entry
    let root = data;
    let draw = null;
    const parents = new Map();
    const connect = (entry) => (entry.children || []).forEach((child) => { parents.set(child, entry); connect(child); });
    connect(data);

    const drawing = figure(element, options, (svg, width) => {
      draw = () => {
        svg.replaceChildren();
        entries.clear();
        svg.setAttribute("height", Math.min(40, depth(root)) * ROW + (parents.has(root) ? ROW : 0));
        const place = (entry, x, pixels, y) => {
          if (pixels < MINIMUM) return;
          const share = data.value ? `, ${page.format.percent(entry.value / data.value)}` : "";
          const group = page.svg("g", { class: "flame-entry", tabindex: "-1" }, [
            page.svg("title", { text: `${entry.title || entry.name}: ${format(entry.value)}${share}` }),
          ]);
          const rect = page.svg("rect", { x, y, width: Math.max(0, pixels - 1), height: ROW - 2, rx: 2 });
          rect.style.fill = entry.color || (entry === data ? "var(--category-other)" : hue(entry.name));
          group.append(rect);
          const characters = Math.floor((pixels - 10) / 6.8);
          if (characters >= 3) {
            const label = entry.name.length > characters ? `${entry.name.slice(0, characters - 1)}…` : entry.name;
            group.append(text(x + 5, y + 14.5, label));
          }
          group.addEventListener("click", () => magnify(entry === root ? parents.get(entry) || data : entry));
          entries.set(group, entry);
          svg.append(group);
          let left = x;
          for (const child of [...(entry.children || [])].sort((a, b) => b.value - a.value)) {
            const part = entry.value ? (child.value / entry.value) * pixels : 0;
            place(child, left, part, y + ROW);
            left += part;
          }
        };
        let y = 0;
        if (parents.has(root)) {
          const path = [];
          for (let entry = parents.get(root); entry; entry = parents.get(entry)) path.unshift(entry.name);
          const up = page.svg("g", { class: "flame-entry up", tabindex: "-1" }, [
            page.svg("rect", { x: 0, y: 0, width: width - 1, height: ROW - 2, rx: 2 }), text(5, 14.5, `↑ ${path.join(" / ")}`),
          ]);
          up.addEventListener("click", () => magnify(parents.get(root)));
          entries.set(up, parents.get(root));
          svg.append(up);
          y = ROW;
        }
        place(root, 0, width, y);
      };
      draw();
    });

    function magnify(entry) {
      root = entry;
      const focused = drawing.contains(document.activeElement);
      draw();
      const shown = [...entries].find(([group, candidate]) => candidate === entry && !group.classList.contains("up"));
      if (focused && shown) shown[0].focus();
      if (options.onclick) options.onclick(entry);
    }

    roving(drawing, () => [...entries.keys()], {
      previous: "ArrowLeft", next: "ArrowRight", enter: (group) => group.dispatchEvent(new MouseEvent("click")),
    });
    return drawing;
  };
})();
