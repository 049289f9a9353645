/* Horizontal bars, each in one piece or of parts. */
(() => {
  const { figure, text, roving } = page.chartParts;
  const ROW = 24;

  function shortened(label, width) {
    const characters = Math.max(6, Math.floor(width / 6.6));
    return label.length <= characters ? label : `${label.slice(0, characters - 1)}…`;
  }

  page.charts.bars = (element, data, options = {}) => {
    const format = options.format || page.format.count;
    const max = options.max || Math.max(...data.map((entry) => entry.value), 0) || 1;
    const legend = new Map(data.flatMap((entry) => (entry.parts || []).map((part) => [part.label, part.color])));
    const drawing = figure(element, { ...options, legend: [...legend] }, (svg, width) => {
      const labels = options.labelWidth || Math.min(width * 0.4, 24 + 6.8 * Math.max(...data.map((entry) => entry.label.length), 4));
      const values = 16 + 7 * Math.max(...data.map((entry) => format(entry.value).length), 3);
      const pixels = (value) => (Math.max(0, value) / max) * (width - labels - values);
      svg.setAttribute("height", data.length * ROW);
      data.forEach((entry, row) => {
        const y = row * ROW;
        const group = page.svg("g", { class: entry.onclick ? "bar link" : "bar", tabindex: "-1", onclick: entry.onclick });
        group.append(
          page.svg("title", { text: entry.title || `${entry.label}: ${format(entry.value)}` }),
          page.svg("rect", { class: "bar-row", x: 0, y, width, height: ROW }),
          text(labels - 8, y + 16, shortened(entry.label, labels - 8), { "text-anchor": "end" }));
        let x = labels;
        for (const part of entry.parts || [{ value: entry.value, color: entry.color, label: entry.label }]) {
          const rect = page.svg("rect", { x, y: y + 5, width: Math.max(part.value > 0 ? 1 : 0, pixels(part.value)), height: ROW - 10, rx: 1 });
          rect.style.fill = part.color || "var(--category-0)";
          if (entry.parts) rect.append(page.svg("title", { text: `${entry.label}, ${part.label}: ${format(part.value)}` }));
          group.append(rect);
          x += pixels(part.value);
        }
        group.append(text(x + 6, y + 16, format(entry.value), { class: "value" }));
        svg.append(group);
      });
    });
    roving(drawing, () => [...drawing.querySelectorAll(".bar")], {
      previous: "ArrowUp", next: "ArrowDown", enter: (bar) => bar.dispatchEvent(new MouseEvent("click")),
    });
  };
})();
