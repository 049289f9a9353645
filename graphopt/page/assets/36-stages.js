/*
 * The time line of passes: one bar each, whose height is the number of nodes afterwards. A chosen stage lists its
 * differences, and highlights the nodes that it removed (in the original) and created (in the result).
 */
(() => {
  const LISTED = 300; // lines of one difference

  function lineOf(mark, text, target) {
    const content = target
      ? page.el("button", { class: "link", type: "button", text, onclick: () => page.select(target) })
      : page.el("span", { text });
    return page.el("li", { class: { "+": "added", "−": "removed", "~": "changed" }[mark] }, [page.el("span", { class: "mark", text: mark }), content]);
  }

  /** The node of this name in a graph as the argument of `page.select`; null without one. */
  function target(position, name) {
    if (!page.graphs[position]) return null;
    const node = page.nodeByName(position, name);
    return node >= 0 ? { graph: position, node } : null;
  }

  function difference(stage) {
    const last = page.graphs.length - 1;
    const lines = [
      ...stage.removed.map((name) => lineOf("−", name, target(0, name))),
      ...stage.added.map(([name, op, inputs, outputs, by]) => lineOf("+", `${outputs.join(", ")} = ${op}(${inputs.join(", ")})  ${name}, by ${by}`, target(last, name))),
      ...stage.changed.map((name) => lineOf("~", name, target(last, name))),
    ];
    const hidden = Math.max(0, lines.length - LISTED) + stage.truncated;
    const rewrites = Object.entries(stage.rewrites).map(([rule, count]) => `${rule} ×${page.format.count(count)}`);
    return page.el("div", {}, [
      rewrites.length ? page.el("p", { class: "rewrites", text: rewrites.join(", ") }) : null,
      lines.length ? page.el("ul", { class: "diff" }, lines.slice(0, LISTED)) : page.el("p", { class: "hint", text: "no change" }),
      hidden ? page.el("p", { class: "hint", text: `${page.format.count(hidden)} more differences` }) : null,
    ]);
  }

  /** The element of the time line; nothing for a page without stages. */
  page.stagesPanel = () => {
    const { stages } = page.payload;
    if (!stages || !stages.length) return null;
    const most = Math.max(1, ...stages.map((stage) => stage.nodes));
    const title = page.el("h3", { role: "status" });
    const contents = page.el("div", { class: "stage-contents" });
    const bars = stages.map((stage, index) => {
      const changes = stage.removed.length + stage.added.length + stage.changed.length + stage.truncated;
      const bar = page.el("button", {
        class: changes ? "stage" : "stage idle", type: "button", role: "option", tabindex: "-1", onclick: () => choose(index),
        title: `${stage.pass}: ${page.format.count(stage.nodes)} nodes, ${page.format.seconds(stage.seconds)}`,
      }, [page.el("span", { class: "bar" })]);
      bar.firstChild.style.height = `${4 + (44 * stage.nodes) / most}px`;
      return bar;
    });
    const line = page.el("div", { class: "time-line", role: "listbox", tabindex: "0", "aria-label": "Passes, in order" }, bars);
    let current = -1;

    function choose(index) {
      current = Math.max(-1, Math.min(index, stages.length - 1));
      bars.forEach((bar, position) => bar.setAttribute("aria-selected", String(position === current)));
      const stage = stages[current];
      const indexes = (position, names) => (page.graphs[position] ? names.map((name) => page.nodeByName(position, name)).filter((node) => node >= 0) : []);
      const last = page.graphs.length - 1;
      const outlined = [[0, "removed", stage ? indexes(0, stage.removed) : []], [last, "made", stage ? indexes(last, stage.added.map(([name]) => name)) : []]];
      for (const [position, className, nodes] of outlined) {
        page.highlight(position, nodes, className);
        page.reveal(position, nodes);
      }
      previous.disabled = current < 0;
      next.disabled = current === stages.length - 1;
      title.textContent = stage
        ? `${stage.index} ${stage.pass}: ${page.format.count(stage.nodes)} nodes, ${page.format.seconds(stage.seconds)}${stage.weight_bytes === null ? "" : `, weights ${page.format.bytes(stage.weight_bytes)}`}`
        : `${stages.length} passes`;
      contents.replaceChildren(...(stage ? [difference(stage)] : []));
      if (stage) bars[current].scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    /** The next stage in a direction that has changes. */
    function step(direction) {
      let index = current + direction;
      while (index > 0 && index < stages.length - 1 && bars[index].classList.contains("idle")) index += direction;
      choose(index);
    }

    const previous = page.el("button", { id: "stage-previous", class: "quiet", type: "button", text: "◀ previous", onclick: () => step(-1) });
    const next = page.el("button", { id: "stage-next", class: "quiet", type: "button", text: "next ▶", onclick: () => step(1) });
    line.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") step(1);
      else if (event.key === "ArrowLeft") step(-1);
      else if (event.key === "Home") choose(0);
      else if (event.key === "End") choose(stages.length - 1);
      else if (event.key === "Escape") choose(-1);
      else return;
      event.preventDefault();
    });
    choose(-1);
    return page.el("section", { id: "stages", "aria-label": "Passes" }, [
      page.el("div", { class: "stages-head" }, [previous, next, title]), line, contents,
    ]);
  };
})();
