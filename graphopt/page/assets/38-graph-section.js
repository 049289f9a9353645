/*
 * The section of the graph: views of the original and the result, toolbar, search, details and stages.
 *
 * Identifiers for tests and links: #search, #coloring, #legend, #graph-canvas-0, #graph-canvas-1, #details, #stages,
 * #stage-previous, #stage-next.
 */
(() => {
  const HIGHLIGHTS = ["match", "related", "removed", "made"];
  let views = [];
  let showDetails = null;
  const early = []; // calls before the section is shown

  /** Call `action` now, or when the views exist. */
  function whenReady(action) {
    if (views.length) action();
    else early.push(action);
  }

  /** Select a node or value `{graph, node}` or `{graph, value}` of one graph, and show it. */
  page.select = (target) => {
    page.visit("graph");
    page.initialize("graph");
    whenReady(() => choose(target.graph, target));
  };

  /** Outline nodes of a graph; `className` is one of match, related, removed and made. */
  page.highlight = (position, nodes, className) => {
    if (!HIGHLIGHTS.includes(className)) throw new Error(`no highlight has the name ${className}`);
    whenReady(() => views[position] && views[position].highlight(nodes, className));
  };

  /** Bring one of the nodes of a graph into view, unless one is visible. */
  page.reveal = (position, nodes) => whenReady(() => views[position] && views[position].revealAny(nodes));

  function itemOf(target) {
    if (!target) return null;
    if (target.node !== undefined) return { node: target.node };
    return target.value !== undefined ? { value: target.value } : { scope: target.scope };
  }

  /** Select an item of a graph, and show its details; `moves` brings it into view. */
  function choose(position, target, moves = true) {
    const item = itemOf(target);
    views.forEach((view, index) => {
      view.selection = index === position ? item : null;
      view.highlight([], "related");
      if (index === position && item && moves) {
        view.expandTo(item);
        view.reveal(view.boxOf(item));
      }
      view.draw();
    });
    const other = views[1 - position];
    if (other && item && item.node !== undefined) {
      const related = views[position].graph.data.nodes.related[item.node];
      other.highlight(related, "related");
      if (related.length) {
        other.expandTo({ node: related[0] });
        other.reveal(other.boxOf({ node: related[0] }));
      }
    }
    showDetails(position, item);
  }

  function option(value, text, selected) {
    return page.el("option", { value, text, selected });
  }

  function coloringControl() {
    const legend = page.el("ul", { id: "legend", class: "legend", "aria-label": "Legend" });
    const select = page.el("select", { id: "coloring", onchange: () => page.colorBy(select.value) });
    function update() {
      select.replaceChildren(...[...page.colorings.values()].map((one) => option(one.name, one.label, one === page.currentColoring)));
      legend.replaceChildren(...page.currentColoring.legend().map(([text, color]) => {
        const swatch = page.el("span", { class: "swatch" });
        swatch.style.background = page.resolve(color || "") || "transparent";
        return page.el("li", {}, [swatch, text]);
      }));
      views.forEach((view) => view.recolor());
    }
    for (const event of ["coloring", "colorings", "theme"]) page.on(event, update);
    update();
    return { control: page.el("label", {}, ["Colour ", select]), legend };
  }

  function button(text, title, action) {
    return page.el("button", { class: "quiet", type: "button", text, title, onclick: action });
  }

  function structureControls() {
    const all = (action) => () => views.forEach(action);
    const scoped = page.graphs.some((graph) => graph.data.scopes.length > 1);
    const everyScope = (graph) => graph.data.scopes.map((_, scope) => scope).slice(1);
    return [
      button("Fit", "Show the whole graph (0)", all((view) => view.fit())),
      button("+", "Zoom in (+)", all((view) => view.zoom(1.25))),
      button("−", "Zoom out (-)", all((view) => view.zoom(0.8))),
      ...(scoped ? [
        button("All nodes", "Show all nodes without scopes", all((view) => view.structure({ flat: true }))),
        button("Scopes", "Collapse the scopes", all((view) => view.structure({ flat: false }))),
        button("Expand", "Expand all scopes", all((view) => view.structure({ flat: false, expanded: everyScope(view.graph) }))),
      ] : []),
    ];
  }

  function sidesControl(area) {
    if (page.graphs.length < 2) return null;
    const choices = [["both", "side by side"], ...page.graphs.map((graph, index) => [String(index), graph.shortLabel])];
    const select = page.el("select", { id: "sides", onchange: () => {
      area.dataset.sides = select.value;
      views.forEach((view, index) => { view.element.hidden = select.value !== "both" && select.value !== String(index); });
    } }, choices.map(([value, text]) => option(value, text, value === "both")));
    return page.el("label", {}, ["Show ", select]);
  }

  page.section("graph", (element) => {
    const body = page.el("div", { class: "details-body", "aria-live": "polite" });
    const hint = "Select a node, an edge or a scope. Double-click a scope to expand it; drag to move; Ctrl and the wheel zoom. Keys: arrows follow edges, + and − zoom, 0 shows all, / searches.";
    showDetails = (position, item) => {
      const graph = page.graphs[position];
      const toggle = () => views[position].toggle(item.scope);
      body.replaceChildren(...(item ? page.detailsOf(graph, item, toggle).filter((one) => one !== null) : [page.el("p", { class: "hint", text: hint })]));
    };
    const hooks = (position) => ({
      // A click must not move the graph: the second one of a double click would meet another box.
      select: (item) => choose(position, item, false),
      leave: (item) => leave(position, item),
    });
    function leave(position, item) {
      const { graph } = views[position];
      const scope = item.node !== undefined ? graph.data.nodes.scope[item.node] : item.scope !== undefined ? graph.data.scopes[item.scope].parent : 0;
      if (scope > 0) choose(position, { scope });
    }

    const created = page.graphs.map((graph, index) => {
      const view = new page.GraphView(graph, hooks(index));
      view.canvas.id = `graph-canvas-${index}`;
      return view;
    });
    const search = page.searchPanel({
      select: (position, node) => choose(position, { node }),
      highlight: (found) => found.forEach((nodes, position) => views[position].highlight(nodes, "match")),
    });
    search.input.id = "search";
    views = created;
    const coloring = coloringControl();
    const area = page.el("div", { class: "views" }, created.map((view) => view.element));
    const stages = page.stagesPanel();
    element.classList.add("graph-page");
    element.append(
      page.el("div", { class: "toolbar" }, [search.input, coloring.control, sidesControl(area), page.el("span", { class: "buttons" }, structureControls())]),
      coloring.legend,
      page.el("div", { class: "graph-main" }, [area, page.el("aside", { id: "details", "aria-label": "Details" }, [search.element, body])]),
      ...(stages ? [stages] : []),
    );
    showDetails(0, null);
    early.splice(0).forEach((action) => action());
    document.addEventListener("keydown", (event) => {
      const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      if (event.key !== "/" || isTyping || document.body.dataset.section !== "graph") return;
      search.input.focus();
      event.preventDefault();
    });
  });

  /** Geometry for tests: the point of a node on its canvas, in pixels; null for a node inside a collapsed scope. */
  page.pointOf = (position, node) => {
    const view = views[position];
    const box = view.layout.boxes[view.boxOf({ node })];
    if (!box) return null;
    return [(box.x + box.w / 2) * view.scale + view.offset[0], (box.y + box.h / 2) * view.scale + view.offset[1]];
  };
})();
