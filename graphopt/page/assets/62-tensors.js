/* Tensors: the relative errors of two models along the depth, and a list of all tensors with a filter. */
(() => {
  const LISTED = 500; // rows of the list
  const FLOOR = 1e-12; // where identical tensors are drawn, on a logarithmic axis

  function chart(element, tensors) {
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
    const state = (index) => (tensors.departed[index] ? "departs" : tensors.identical[index] ? "identical" : "equal");
    const list = () => {
      const text = field.value.toLowerCase();
      const found = tensors.name.map((_, index) => index).filter((index) => !text
        || [tensors.name[index], tensors.node[index] || "", tensors.type[index], state(index)].some((one) => one.toLowerCase().includes(text)));
      body.replaceChildren(...found.slice(0, LISTED).map((index) => page.el("tr", { class: state(index) }, [
        page.el("td", { class: "text", text: state(index) }),
        page.el("td", { class: "text", text: tensors.name[index] }),
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
})();
