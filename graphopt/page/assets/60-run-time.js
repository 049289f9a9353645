/*
 * Run time: latencies with the band of the original against itself, time by scope and operator, memory over time,
 * and the roofline. The colourings "time" and "share of peak" of the graph use the same measurements.
 */
(() => {
  const data = (page.payload.sections || {})["run-time"];
  if (!data) return;
  const models = data.models.map((model, index) => ({ ...model, index })).filter((model) => model.kernels);
  const name = (model) => model.name;
  const heat = ["hsl(48 90% 72%)", "hsl(36 92% 62%)", "hsl(24 90% 54%)", "hsl(10 78% 48%)", "hsl(350 72% 38%)"];

  /** A colouring by ranges of a number; `limits` are the upper ends of all ranges but the last. */
  function ranges(id, label, columns, limits, texts, colors) {
    const maps = data.models.map((model) => new Map(model[columns] || []));
    if (maps.every((map) => map.size === 0)) return;
    const range = (value) => { const found = limits.findIndex((limit) => value < limit); return found < 0 ? limits.length : found; };
    page.addColoring({
      name: id,
      label,
      color(position, node) {
        const value = maps[position] && maps[position].get(node);
        return value === undefined ? null : colors[range(scaled(value, position, columns))];
      },
      legend: () => texts.map((text, index) => [text, colors[index]]),
    });
  }

  const totals = data.models.map((model) => (model.time || []).reduce((sum, entry) => sum + entry[1], 0) || 1);
  const scaled = (value, position, columns) => (columns === "time" ? value / totals[position] : value);

  if (page.addColoring) {
    ranges("time", "time", "time", [0.001, 0.005, 0.02, 0.05],
      ["below 0.1 % of the run", "0.1 to 0.5 %", "0.5 to 2 %", "2 to 5 %", "above 5 %"], heat);
    ranges("share", "share of peak", "share", [0.1, 0.25, 0.5, 0.8],
      ["below 10 % of a peak", "10 to 25 %", "25 to 50 %", "50 to 80 %", "above 80 %"], [...heat].reverse());
  }

  /** A new element for one chart. */
  function slot(element) {
    const found = page.el("div", { class: "chart-slot" });
    element.append(found);
    return found;
  }

  function distributions(element) {
    const { edges, counts, beyond } = data.distribution;
    const timed = data.models.filter((model) => model.p50 !== undefined);
    if (!edges.length) return;
    page.charts.histogram(slot(element), timed.map((model, index) => ({ label: name(model), counts: counts[index], edges })), {
      title: "Latency of single runs", xLabel: "milliseconds, up to the 99th percentile", format: page.format.number,
    });
    const late = beyond.map((count, index) => `${name(timed[index])} ${count}`).join(", ");
    element.append(page.el("p", { class: "hint", text: `Slower runs, not drawn: ${late}.` }));
    const ratios = timed.slice(1).filter((model) => model.ratios.length);
    if (ratios.length) {
      page.charts.histogram(slot(element), [
        { label: "original against itself", values: data.twin },
        ...ratios.map((model) => ({ label: name(model), values: model.ratios })),
      ], { title: "Ratio to the original, by process", xLabel: "time / time of the original", band: data.band, bandLabel: "noise", bins: 30, format: (ratio) => ratio.toFixed(3) });
    }
  }

  function operators(element) {
    const byOperator = new Map();
    models.forEach((model, position) => {
      model.kernels.op.forEach((op, kernel) => {
        if (!byOperator.has(op)) byOperator.set(op, models.map(() => 0));
        byOperator.get(op)[position] += model.kernels.milliseconds[kernel] / 1e3;
      });
    });
    const ranked = [...byOperator].sort((a, b) => Math.max(...b[1]) - Math.max(...a[1])).slice(0, 16);
    const max = Math.max(...ranked.flatMap((entry) => entry[1]), 0);
    models.forEach((model, position) => {
      const bars = ranked.map(([op, seconds]) => ({ label: op, value: seconds[position], color: page.category(position) }));
      page.charts.bars(slot(element), bars, { title: `Time by operator, ${name(model)}`, format: page.format.seconds, max });
    });
  }

  function memory(element) {
    const series = models.filter((model) => model.memory.bytes.length).map((model) => ({
      label: name(model),
      points: model.memory.bytes.map((bytes, index) => [model.memory.milliseconds[index] / 1e3, bytes, model.memory.kernel[index]]),
      step: true,
      area: true,
    }));
    if (!series.length) return;
    page.charts.lines(slot(element), series, {
      title: "Memory of activations over one run", xLabel: "time", yLabel: "live bytes", xFormat: page.format.seconds, yFormat: page.format.bytes,
    });
    element.append(page.el("p", { class: "hint", text: "From the shapes and live ranges of values in a profiled run, without weights and inputs. Values that share a buffer count separately." }));
  }

  function roofline(element) {
    if (!data.peaks) return;
    const points = models.map((model) => ({
      label: name(model),
      marks: true,
      points: model.kernels.flops.map((flops, kernel) => {
        const { bytes, milliseconds, name: names, share } = model.kernels;
        if (!flops || !bytes[kernel] || !milliseconds[kernel]) return null;
        const part = share[kernel] === null ? "" : `, ${page.format.percent(share[kernel], 0)} of a peak`;
        return [flops / bytes[kernel], flops / milliseconds[kernel] / 1e6, `${names[kernel]}${part}`];
      }).filter((point) => point !== null),
    })).filter((series) => series.points.length);
    if (!points.length) return;
    const xs = points.flatMap((series) => series.points.map((point) => point[0]));
    const [low, high] = [Math.min(...xs) / 2, Math.max(...xs) * 2];
    const bandwidth = data.peaks.bandwidth.rate / 1e9;
    const roofs = Object.entries(data.peaks.flops).map(([type, peak]) => {
      const [rate, ridge] = [peak.rate / 1e9, peak.rate / 1e9 / bandwidth];
      const bends = ridge > low && ridge < high ? [[ridge, rate]] : [];
      return { label: `peak ${type}`, points: [[low, Math.min(rate, low * bandwidth)], ...bends, [high, Math.min(rate, high * bandwidth)]] };
    });
    page.charts.lines(slot(element), [...points, ...roofs], {
      title: "Roofline", xLabel: "operations per byte", yLabel: "billion operations per second", logX: true, logY: true, height: 320,
    });
  }

  /** The slowest kernels with links to their nodes. */
  function slowest(element) {
    for (const model of models) {
      const { kernels } = model;
      const total = kernels.milliseconds.reduce((sum, value) => sum + value, 0) || 1;
      const rows = kernels.name.slice(0, 30).map((kernel, index) => {
        const nodes = kernels.nodes[index];
        const link = nodes.length && page.select
          ? page.el("button", {
            class: "link", type: "button", text: kernel,
            onclick: () => { page.visit("graph"); page.select({ graph: model.index, node: nodes[0] }); },
          })
          : page.el("span", { text: kernel });
        const share = kernels.share[index];
        return page.el("tr", {}, [
          page.el("td", { class: "text" }, [link]),
          page.el("td", { class: "text", text: kernels.op[index] }),
          page.el("td", { class: "number", text: page.format.seconds(kernels.milliseconds[index] / 1e3) }),
          page.el("td", { class: "number", text: page.format.percent(kernels.milliseconds[index] / total) }),
          page.el("td", { class: "number", text: share === null ? "" : page.format.percent(share, 0) }),
          page.el("td", { class: "text", text: kernels.bound[index] || "" }),
          page.el("td", { class: "text", text: model.providers[kernels.provider[index]].replace("ExecutionProvider", "") }),
        ]);
      });
      const heads = [["kernel", "text"], ["operator", "text"], ["time", "number"], ["share", "number"], ["of a peak", "number"], ["bound", "text"], ["on", "text"]];
      element.append(
        page.el("h3", { text: `Slowest kernels, ${name(model)}` }),
        page.el("table", { class: "data" }, [
          page.el("thead", {}, [page.el("tr", {}, heads.map(([text, kind]) => page.el("th", { class: kind, scope: "col", text })))]),
          page.el("tbody", {}, rows),
        ]));
    }
  }

  page.section("run-time", (element) => {
    distributions(element);
    for (const model of models) {
      page.charts.flame(slot(element), model.flame, { title: `Time by scope, ${name(model)}`, format: page.format.seconds });
    }
    operators(element);
    memory(element);
    roofline(element);
    slowest(element);
  });
})();
