/* Lines and points over linear or logarithmic axes. */
(() => {
  const { figure, scale, axes } = page.chartParts;

  function range(values, log) {
    const finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
    if (!finite.length) return log ? [1, 10] : [0, 1];
    let [low, high] = [finite[0], finite[0]];
    for (const value of finite) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (log) return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.0001))];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  function path(points, x, y, step) {
    return points.map(([px, py], index) => {
      const [cx, cy] = [x(px).toFixed(1), y(py).toFixed(1)];
      return index === 0 ? `M${cx},${cy}` : step ? `H${cx}V${cy}` : `L${cx},${cy}`;
    }).join("");
  }

  page.charts.lines = (element, data, options = {}) => {
    const height = options.height || 260;
    const colors = data.map((series, index) => series.color || page.category(index));
    const legend = data.map((series, index) => [series.label, colors[index]]);
    const xs = data.flatMap((series) => series.points.map((point) => point[0]));
    const ys = data.flatMap((series) => series.points.map((point) => point[1]));
    const [xLow, xHigh] = range(xs, options.logX);
    let [yLow, yHigh] = range(ys, options.logY);
    if (!options.logY && options.zero !== false) [yLow, yHigh] = [Math.min(0, yLow), Math.max(0, yHigh)];
    const yFormat = options.yFormat || page.format.number;
    const xFormat = options.xFormat || page.format.number;
    const drawing = figure(element, { ...options, legend }, (svg, width) => {
      const widest = Math.max(...[yLow, yHigh, (yLow + yHigh) / 3].map((value) => yFormat(value).length));
      const box = { left: 20 + 7 * widest, right: width - 16, top: options.yLabel ? 30 : 12, bottom: height - (options.xLabel ? 44 : 26) };
      svg.setAttribute("height", height);
      const x = scale(xLow, xHigh, box.left, box.right, { log: options.logX, count: Math.max(2, Math.floor(width / 110)) });
      const y = scale(yLow, yHigh, box.bottom, box.top, { log: options.logY, count: 5 });
      axes(svg, box, x, y, options);
      data.forEach((series, index) => {
        const points = series.points.filter(([px, py]) => Number.isFinite(px) && Number.isFinite(py));
        if (!points.length) return;
        if (series.area) {
          const d = `${path(points, x, y, series.step)}L${x(points.at(-1)[0])},${box.bottom}L${x(points[0][0])},${box.bottom}Z`;
          const area = page.svg("path", { class: "area", d });
          area.style.fill = colors[index];
          svg.append(area);
        }
        if (!series.marks) {
          const line = page.svg("path", { class: "line", d: path(points, x, y, series.step) }, [page.svg("title", { text: series.label })]);
          line.style.stroke = colors[index];
          svg.append(line);
        }
        if (series.marks || points.length <= 80) {
          for (const [px, py, title] of points) {
            const mark = page.svg("circle", { class: "mark", cx: x(px), cy: y(py), r: series.marks ? 4.5 : 2.5 }, [
              page.svg("title", { text: `${title || series.label}: ${xFormat(px)}, ${yFormat(py)}` }),
            ]);
            mark.style.fill = colors[index];
            svg.append(mark);
          }
        }
      });
      const cursor = page.svg("line", { class: "cursor", y1: box.top, y2: box.bottom });
      const move = (value) => {
        cursor.style.display = value === null || value === undefined ? "none" : "";
        for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(value || 0));
      };
      move(options.cursor);
      svg.append(cursor);
      svg.moveCursor = (value) => move((options.cursor = value));
      svg.toValue = (pixel) => x.invert(pixel);
    });
    if (options.onclick) {
      drawing.classList.add("link");
      drawing.addEventListener("click", (event) => options.onclick(drawing.toValue(event.clientX - drawing.getBoundingClientRect().left)));
    }
    return drawing;
  };
})();
