/*
 * Charts as SVG, without a library: those that write self-contained pages add <style> elements or evaluate text,
 * which the content-security policy of the page forbids.
 *
 *   page.charts.bars(element, data, options)
 *     data: [{label, value, color?, title?, parts?: [{label, value, color}], onclick?}]: one horizontal bar an entry.
 *     options: {title, format = count, max?, labelWidth?}
 *   page.charts.lines(element, data, options)
 *     data: [{label, points: [[x, y], …], color?, area?, step?, marks?}]: lines, or with `marks` only points, whose
 *     third item is a title, [x, y, "MatMul_3"].
 *     options: {title, xLabel, yLabel, xFormat, yFormat, logX, logY, height = 260, zero = true (y from 0),
 *               cursor?: x of a vertical line, onclick?: function (x)}
 *   page.charts.flame(element, data, options)
 *     data: {name, value, children: [...], color?, title?}: a tree; a click or Enter magnifies an entry.
 *     options: {title, format = seconds, onclick?: function (entry)}
 *   page.charts.histogram(element, data, options)
 *     data: [{label, values: [number], color?}] or [{label, counts: [n], edges: [n + 1 numbers], color?}]
 *     options: {title, xLabel, format, bins = 40, band?: [low, high], bandLabel?, height = 200}
 *
 * Colours are CSS colours; references such as page.category(0) follow the theme. Each chart replaces the children of
 * `element`, is one stop of the Tab key with its title as label, and has tooltips by <title>; the arrow keys move
 * between the bars of `bars` and the entries of `flame`.
 */
(() => {
  /** A focusable figure with a caption and a drawing of the width of the element; `draw(svg, width)` fills it. */
  function figure(element, options, draw) {
    const drawing = page.svg("svg", { class: "chart", role: "img", "aria-label": options.title || "Chart", tabindex: "0" });
    element.replaceChildren(page.el("figure", { class: "chart-figure" }, [
      options.title ? page.el("figcaption", { text: options.title }) : null,
      options.legend && options.legend.length > 1 ? legend(options.legend) : null,
      drawing,
    ]));
    let last = 0;
    const redraw = () => {
      const width = Math.max(240, Math.floor(drawing.parentElement.clientWidth || 720));
      if (width === last) return;
      last = width;
      const focused = drawing.contains(document.activeElement);
      drawing.replaceChildren();
      drawing.setAttribute("width", width);
      draw(drawing, width);
      if (focused) drawing.focus();
    };
    redraw();
    new ResizeObserver(redraw).observe(drawing.parentElement);
    return drawing;
  }

  /** Labels with their colours: `entries` is [[label, color]]. */
  function legend(entries) {
    return page.el("div", { class: "legend" }, entries.map(([label, color]) => {
      const swatch = page.el("span", { class: "swatch" });
      swatch.style.background = color;
      return page.el("span", { class: "legend-entry" }, [swatch, page.el("span", { text: label })]);
    }));
  }

  /** About `count` round numbers that cover [low, high]. */
  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const result = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
      result.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
    }
    return result;
  }

  /** Powers of ten in [low, high], at most `count`. */
  function logTicks(low, high, count) {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const step = Math.max(1, Math.ceil((last - first) / count));
    const result = [];
    for (let power = first; power <= last; power += step) result.push(10 ** power);
    return result.length ? result : [low, high];
  }

  /** A scale: value → pixel, with its ticks. */
  function scale(low, high, start, end, { log = false, count = 5 } = {}) {
    if (log) {
      const [a, b] = [Math.log(low), Math.log(high)];
      const apply = (value) => start + ((Math.log(Math.max(value, low)) - a) / (b - a || 1)) * (end - start);
      apply.invert = (pixel) => Math.exp(a + ((pixel - start) / (end - start)) * (b - a));
      return Object.assign(apply, { ticks: logTicks(low, high, count) });
    }
    const apply = (value) => start + ((value - low) / (high - low || 1)) * (end - start);
    apply.invert = (pixel) => low + ((pixel - start) / (end - start)) * (high - low);
    return Object.assign(apply, { ticks: ticks(low, high, count) });
  }

  function text(x, y, content, attributes) {
    return page.svg("text", { x, y, text: content, ...attributes });
  }

  /** The axes of a plot in the rectangle (left, top)–(right, bottom). */
  function axes(drawing, box, x, y, options) {
    const xFormat = options.xFormat || page.format.number;
    const yFormat = options.yFormat || page.format.number;
    for (const tick of y.ticks) {
      drawing.append(
        page.svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
        text(box.left - 8, y(tick) + 4, yFormat(tick), { "text-anchor": "end", class: "tick" }));
    }
    for (const tick of x.ticks) {
      drawing.append(
        page.svg("line", { class: "tick-mark", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 4 }),
        text(x(tick), box.bottom + 17, xFormat(tick), { "text-anchor": "middle", class: "tick" }));
    }
    drawing.append(page.svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    if (options.xLabel) drawing.append(text((box.left + box.right) / 2, box.bottom + 36, options.xLabel, { "text-anchor": "middle", class: "axis-label" }));
    if (options.yLabel) drawing.append(text(box.left, box.top - 10, options.yLabel, { class: "axis-label" }));
  }

  /** Let the arrow keys move the focus between the elements of a chart, which are one stop of the Tab key together. */
  function roving(drawing, items, { previous, next, enter }) {
    drawing.addEventListener("keydown", (event) => {
      const index = items().indexOf(document.activeElement);
      let target = null;
      if (event.key === next || (index < 0 && event.key.startsWith("Arrow"))) target = items()[Math.min(index + 1, items().length - 1)];
      else if (event.key === previous) target = items()[Math.max(index - 1, 0)];
      else if (event.key === "Home") target = items()[0];
      else if (event.key === "End") target = items().at(-1);
      else if ((event.key === "Enter" || event.key === " ") && index >= 0 && enter) enter(items()[index]);
      else return;
      if (target) target.focus();
      event.preventDefault();
    });
  }

  page.charts = {};
  page.chartParts = { figure, scale, axes, text, roving };
})();
