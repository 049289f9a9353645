/* Tensors: the relative errors of two models along the depth, and a list of all tensors with a filter. */
(() => {
  const LISTED = 500; // rows of the list
  const FLOOR = 1e-12; // where identical tensors are drawn, on a logarithmic axis

  /** The colouring "error": nodes by the largest relative error of their results. */
  function addColoring() {
    const found = (page.payload.sections || {}).tensors;
    if (!found || !page.addColoring || !found.tensors.nodes.some((nodes) => nodes.length)) return;
    const { tensors } = found;
    const limits = [1e-6, 1e-4, 1e-2];
    const colors = ["hsl(48 90% 72%)", "hsl(36 92% 58%)", "hsl(18 88% 50%)", "hsl(350 72% 38%)"];
    const texts = ["identical", "up to 1e-6", "up to 1e-4", "up to 1e-2", "above 1e-2"];
    const same = "var(--category-2)";
    const maps = page.payload.graphs.map(() => new Map());
    tensors.nodes.forEach((nodes, tensor) => {
      // The JSON of an infinity is null.
      const error = tensors.identical[tensor] ? -1 : tensors.relative[tensor] === null ? Infinity : tensors.relative[tensor];
      nodes.forEach((node, position) => {
        if (node >= 0) maps[position].set(node, Math.max(error, maps[position].has(node) ? maps[position].get(node) : -1));
      });
    });
    page.addColoring({
      name: "error",
      label: "relative error",
      color(position, node) {
        const error = maps[position] ? maps[position].get(node) : undefined;
        if (error === undefined) return null;
        const range = limits.findIndex((limit) => error <= limit);
        return error < 0 ? same : colors[range < 0 ? limits.length : range];
      },
      legend: () => texts.map((text, index) => [text, index ? colors[index - 1] : same]),
    });
  }

  function chart(element, tensors) {
    if (tensors.identical.every((one) => one)) return;
    const series = [
      { label: "identical", color: "var(--category-other)", keep: (index) => tensors.identical[index] },
      { label: "equal within the tolerance", color: page.category(2), keep: (index) => !tensors.identical[index] && !tensors.departed[index] },
      { label: "departs", color: page.category(5), keep: (index) => tensors.departed[index] },
    ].map(({ label, color, keep }) => ({
      label, color, marks: true,
      points: tensors.name.map((name, index) => [tensors.depth[index], Math.max(tensors.relative[index] || 0, FLOOR), name]).filter((_, index) => keep(index)),
    })).filter((one) => one.points.length);
    if (!series.length) return;
    const slot = page.el("div", { class: "chart-slot" });
    element.append(slot);
    page.charts.lines(slot, series, {
      title: "Relative error by depth", xLabel: "nodes on the longest path from the inputs", yLabel: "relative error", logY: true, height: 300,
    });
  }

  page.section("tensors", (element, data) => {
    const { tensors } = data;
    chart(element, tensors);
    const body = page.el("tbody");
    const count = page.el("p", { class: "hint" });
    const field = page.el("input", { type: "search", placeholder: "name, node or type", "aria-label": "Filter tensors" });
    const named = (index) => {
      const node = tensors.nodes[index].length ? tensors.nodes[index][0] : -1;
      if (node < 0 || !page.select) return page.el("span", { text: tensors.name[index] });
      return page.el("button", {
        class: "link", type: "button", text: tensors.name[index],
        onclick: () => { page.visit("graph"); page.select({ graph: 0, node }); },
      });
    };
    const state = (index) => (tensors.departed[index] ? "departs" : tensors.identical[index] ? "identical" : "equal");
    const list = () => {
      const text = field.value.toLowerCase();
      const found = tensors.name.map((_, index) => index).filter((index) => !text
        || [tensors.name[index], tensors.node[index] || "", tensors.type[index], state(index)].some((one) => one.toLowerCase().includes(text)));
      body.replaceChildren(...found.slice(0, LISTED).map((index) => page.el("tr", { class: state(index) }, [
        page.el("td", { class: "state", text: state(index) }),
        page.el("td", { class: "text" }, [named(index)]),
        page.el("td", { class: "text", text: tensors.type[index] }),
        page.el("td", { class: "text", text: tensors.node[index] || "" }),
        page.el("td", { class: "number", text: String(tensors.depth[index]) }),
        page.el("td", { class: "number", text: tensors.largest[index] === null ? "∞" : page.format.number(tensors.largest[index], 2) }),
        page.el("td", { class: "number", text: tensors.relative[index] === null ? "∞" : page.format.number(tensors.relative[index], 2) }),
        page.el("td", { class: "text", text: tensors.reason[index] || "" }),
      ])));
      count.textContent = `${page.format.count(found.length)} of ${page.format.count(tensors.name.length)} tensors`
        + (found.length > LISTED ? `, the first ${LISTED} listed` : "");
    };
    field.addEventListener("input", list);
    const heads = [["", "text"], ["tensor", "text"], ["type", "text"], ["node", "text"], ["depth", "number"], ["max |Δ|", "number"], ["relative", "number"], ["reason", "text"]];
    element.append(page.el("h3", { text: "All tensors" }), field, count, page.el("table", { class: "data" }, [
      page.el("thead", {}, [page.el("tr", {}, heads.map(([text, kind]) => page.el("th", { class: kind, scope: "col", text })))]), body,
    ]));
    list();
  });

  addColoring();
})();
