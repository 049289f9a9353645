/* Distributions: overlaid steps with common bins, and an optional band such as that of an A/A comparison. */
(() => {
  const { figure, scale, axes, text } = page.chartParts;

  /** Counts of each series in common bins. */
  function binned(data, bins) {
    if (data.every((series) => series.counts)) return data.map((series) => ({ counts: series.counts, edges: series.edges }));
    const all = data.flatMap((series) => series.values).filter(Number.isFinite);
    let [low, high] = [all[0] || 0, all[0] || 0];
    for (const value of all) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const edges = Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
    return data.map((series) => {
      const counts = new Array(bins).fill(0);
      for (const value of series.values) {
        if (Number.isFinite(value)) counts[Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins))] += 1;
      }
      return { counts, edges };
    });
  }

  page.charts.histogram = (element, data, options = {}) => {
    const height = options.height || 200;
    const format = options.format || page.format.number;
    const colors = data.map((series, index) => series.color || page.category(index));
    const series = binned(data, options.bins || 40);
    const totals = series.map(({ counts }) => counts.reduce((sum, count) => sum + count, 0) || 1);
    let [low, high, most] = [Infinity, -Infinity, 0];
    series.forEach(({ counts, edges }, index) => {
      [low, high] = [Math.min(low, edges[0]), Math.max(high, edges.at(-1))];
      most = Math.max(most, ...counts.map((count) => count / totals[index]));
    });
    if (options.band) [low, high] = [Math.min(low, options.band[0]), Math.max(high, options.band[1])];
    const legend = data.map((entry, index) => [entry.label, colors[index]]);
    figure(element, { ...options, legend }, (svg, width) => {
      const box = { left: 58, right: width - 16, top: options.band ? 26 : 12, bottom: height - (options.xLabel ? 44 : 26) };
      svg.setAttribute("height", height);
      const x = scale(low, high, box.left, box.right, { count: Math.max(2, Math.floor(width / 110)) });
      const y = scale(0, most || 1, box.bottom, box.top, { count: 3 });
      if (options.band) {
        const [from, to] = options.band.map(x);
        svg.append(
          page.svg("rect", { class: "band", x: from, y: box.top, width: Math.max(1, to - from), height: box.bottom - box.top },
            [page.svg("title", { text: `${options.bandLabel || "band"}: ${format(options.band[0])} to ${format(options.band[1])}` })]),
          text((from + to) / 2, box.top - 6, options.bandLabel || "", { class: "axis-label", "text-anchor": "middle" }));
      }
      axes(svg, box, x, y, { ...options, xFormat: format, yFormat: (share) => page.format.percent(share, 0) });
      series.forEach(({ counts, edges }, index) => {
        let d = `M${x(edges[0])},${box.bottom}`;
        counts.forEach((count, bin) => { d += `V${y(count / totals[index])}H${x(edges[bin + 1])}`; });
        d += `V${box.bottom}`;
        const area = page.svg("path", { class: "area", d });
        const line = page.svg("path", { class: "line", d }, [page.svg("title", { text: data[index].label })]);
        area.style.fill = colors[index];
        line.style.stroke = colors[index];
        svg.append(area, line);
      });
    });
  };
})();
