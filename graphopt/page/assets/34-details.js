/* Details of the selected node, value or scope. */
(() => {
  const LISTED = 40; // entries of a list before "more"

  /** A heading and rows of a definition list; nothing without rows. */
  function block(title, rows) {
    const shown = rows.filter((row) => row !== null);
    if (!shown.length) return null;
    return page.el("section", { class: "details-block" }, [page.el("h4", { text: title }), page.el("dl", {}, shown.flat())]);
  }

  function row(term, ...contents) {
    return [page.el("dt", { text: term }), page.el("dd", {}, contents)];
  }

  function link(text, target, title) {
    return page.el("button", { class: "link", type: "button", text, title, onclick: () => page.select(target) });
  }

  /** A list of entries, shortened until the reader asks for the rest. */
  function list(entries, show) {
    const element = page.el("ul", { class: "links" });
    const add = (some) => some.forEach((entry) => element.append(page.el("li", {}, [show(entry)])));
    add(entries.slice(0, LISTED));
    if (entries.length > LISTED) {
      const more = page.el("button", { class: "link", type: "button", text: `${page.format.count(entries.length - LISTED)} more`, onclick: () => {
        more.parentElement.remove();
        add(entries.slice(LISTED));
      } });
      element.append(page.el("li", {}, [more]));
    }
    return element;
  }

  function nodeLink(graph, node) {
    return page.el("span", {}, [
      page.el("span", { class: "result-op", text: graph.op(node) }),
      link(graph.nodeName(node), { graph: graph.position, node }),
    ]);
  }

  function valueLink(graph, value) {
    if (value < 0) return page.el("span", { class: "hint", text: "omitted" });
    const constant = graph.data.values.stats[value];
    const type = [graph.valueType(value), constant].filter(Boolean).join("; ");
    return page.el("span", {}, [
      link(graph.valueName(value) || "(no name)", { graph: graph.position, value }),
      type ? page.el("span", { class: "type", text: ` ${type}` }) : null,
    ]);
  }

  function lineage(graph, node) {
    const other = page.graphs[1 - graph.position];
    const { nodes } = graph.data;
    const fate = nodes.fate[node];
    const related = nodes.related[node];
    const maker = graph.maker(node);
    const texts = graph.position === 0
      ? ["unchanged", "replaced", "folded into a constant", "removed", "absorbed: another node computes its result"]
      : ["unchanged", "created", "", "", ""];
    if (!other) return null;
    return block("Lineage", [
      row("change", maker ? `${texts[fate]} by ${maker}` : texts[fate]),
      related.length ? row(graph.position === 0 ? "in the result" : "from", list(related, (index) => nodeLink(other, index))) : null,
    ]);
  }

  function nodeDetails(graph, node) {
    const { nodes, groups, devices } = graph.data;
    const scopes = graph.scopesOf(node).slice(1).map((scope) => graph.scopeName(scope));
    const group = nodes.group[node];
    return [
      page.el("h3", { text: graph.op(node) }),
      page.el("p", { class: "full-name", text: graph.nodeName(node) }),
      block("Node", [
        row("graph", graph.label),
        scopes.length ? row("scope", scopes.join(" / ")) : null,
        group >= 0 ? row("group", `${groups[group].name} (${groups[group].kind})`) : null,
        devices.length ? row("device", devices[nodes.device[node]]) : null,
      ]),
      block("Attributes", (nodes.attributes[node] || []).map(([key, text]) => row(key, page.el("code", { text })))),
      block("Inputs", nodes.inputs[node].length ? [row("reads", list(nodes.inputs[node], (value) => valueLink(graph, value)))] : []),
      block("Outputs", nodes.outputs[node].length ? [row("computes", list(nodes.outputs[node], (value) => valueLink(graph, value)))] : []),
      lineage(graph, node),
      block("Not applied", (nodes.notes[node] || []).map((note) => row("reason", note))),
      block("Neighbours", [
        row("before", list(graph.neighbours(node, true), (index) => nodeLink(graph, index))),
        row("after", list(graph.neighbours(node, false), (index) => nodeLink(graph, index))),
      ]),
    ];
  }

  function valueDetails(graph, value) {
    const { values } = graph.data;
    const producer = graph.producer[value];
    const readers = [...new Set(graph.readersOf(value))];
    return [
      page.el("h3", { text: page.valueKinds[values.kind[value]] }),
      page.el("p", { class: "full-name", text: graph.valueName(value) }),
      block("Value", [
        row("graph", graph.label),
        row("type", graph.valueType(value) || "unknown"),
        values.stats[value] ? row("contents", values.stats[value]) : null,
        producer >= 0 ? row("computed by", nodeLink(graph, producer)) : null,
        row("read by", readers.length ? list(readers, (node) => nodeLink(graph, node)) : "no node"),
      ]),
    ];
  }

  function scopeDetails(graph, scope, toggle) {
    const nodes = graph.nodesOf(scope);
    const counts = new Map();
    for (const node of nodes) counts.set(graph.op(node), (counts.get(graph.op(node)) || 0) + 1);
    const ranked = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    return [
      page.el("h3", { text: graph.data.scopes[scope].kind }),
      page.el("p", { class: "full-name", text: graph.scopePath(scope).slice(1).map((one) => graph.scopeName(one)).join(" / ") }),
      page.el("p", {}, [page.el("button", { class: "quiet", type: "button", text: "Expand or collapse", onclick: toggle })]),
      block("Operators", ranked.slice(0, LISTED).map(([op, count]) => row(op, page.format.count(count)))),
      block("Nodes", [row("contains", list(nodes, (node) => nodeLink(graph, node)))]),
    ];
  }

  /** Elements that describe an item of a graph; `toggle` expands or collapses a scope. */
  page.detailsOf = (graph, item, toggle) => {
    if (item.node !== undefined) return nodeDetails(graph, item.node);
    if (item.value !== undefined) return valueDetails(graph, item.value);
    return scopeDetails(graph, item.scope, toggle);
  };
})();
