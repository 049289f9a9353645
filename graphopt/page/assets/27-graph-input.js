/* Pointer and keyboard of a graph view. */
(() => {
  const BOX = page.BOX;
  const CLICK = 5; // pixels that the pointer may move during a click
  const STEP = 1.25; // of zooming
  const TOLERANCE = 9; // width around an edge that selects it, in pixels

  /** The index of the innermost box at a point of the canvas, or -1. */
  function boxAt(view, x, y) {
    const [wx, wy] = view.toWorld(x, y);
    const found = view.grids.boxes.query(wx, wy, wx, wy).filter((index) => {
      const box = view.layout.boxes[index];
      return wx >= box.x && wx <= box.x + box.w && wy >= box.y && wy <= box.y + box.h;
    });
    return found.length ? found.at(-1) : -1; // frames precede their contents
  }

  /** The index of the edge at a point of the canvas, or -1. */
  function edgeAt(view, x, y) {
    if (view.scale < 0.16) return -1;
    const [wx, wy] = view.toWorld(x, y);
    const { context } = view;
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.lineWidth = TOLERANCE / view.scale;
    const found = view.grids.lines.query(wx, wy, wx, wy).slice(0, 400).find((index) => {
      const path = new Path2D();
      page.tracePath(path, view.edges.items[index].points, false);
      return context.isPointInStroke(path, wx, wy);
    });
    context.restore();
    return found ?? -1;
  }

  function itemAt(view, x, y) {
    const index = boxAt(view, x, y);
    const box = view.layout.boxes[index];
    if (box && box.kind !== BOX.frame) return view.itemOf(box);
    const edge = edgeAt(view, x, y);
    if (edge >= 0) return { value: view.edges.items[edge].values[0] };
    return box ? view.itemOf(box) : null;
  }

  function describe(view, item) {
    const { graph } = view;
    if (!item) return "";
    if (item.node !== undefined) return `${graph.op(item.node)} ${graph.nodeName(item.node)}`;
    if (item.value !== undefined) return `${graph.valueName(item.value)}: ${graph.valueType(item.value) || "type unknown"}`;
    return `${graph.scopeName(item.scope)}: ${page.format.count(graph.nodesOf(item.scope).length)} nodes`;
  }

  function pointer(view) {
    const { canvas } = view;
    const position = (event) => {
      const bounds = canvas.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 1) return;
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      drag = { at: position(event), moved: 0 };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = position(event);
      if (!drag) {
        const item = view.inMotion ? null : itemAt(view, x, y);
        canvas.title = describe(view, item);
        canvas.classList.toggle("over", item !== null);
        return;
      }
      drag.moved += Math.abs(x - drag.at[0]) + Math.abs(y - drag.at[1]);
      if (drag.moved > CLICK) view.pan(x - drag.at[0], y - drag.at[1]);
      drag.at = [x, y];
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && drag.moved <= CLICK) click(event);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("dblclick", (event) => {
      const box = view.layout.boxes[boxAt(view, ...position(event))];
      if (box && (box.kind === BOX.scope || box.kind === BOX.frame)) view.toggle(box.id);
    });
    canvas.addEventListener("wheel", (event) => {
      const unit = event.deltaMode === 1 ? 30 : 1;
      if (event.ctrlKey || event.metaKey) view.zoom(Math.exp(-event.deltaY * unit * 0.003), position(event));
      else if (event.shiftKey && !event.deltaX) view.pan(-event.deltaY * unit, 0);
      else view.pan(-event.deltaX * unit, -event.deltaY * unit);
      event.preventDefault();
    }, { passive: false });

    function click(event) {
      const [x, y] = position(event);
      const box = view.layout.boxes[boxAt(view, x, y)];
      // The triangle in the header of a scope.
      const [wx, wy] = view.toWorld(x, y);
      const marked = box && box.kind === BOX.frame && wx < box.x + 26 && wy < box.y + 26;
      if (marked) view.toggle(box.id);
      else view.hooks.select(itemAt(view, x, y));
    }
  }

  /** The box next to the selected one: along an edge for up and down, in its layer for left and right. */
  function neighbour(view, key) {
    const { layout, edges } = view;
    const current = view.boxOf(view.selection);
    if (current < 0) return firstVisible(view);
    const box = layout.boxes[current];
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const row = layout.rows[box.row].boxes;
      return row[row.indexOf(current) + (key === "ArrowLeft" ? -1 : 1)] ?? current;
    }
    const up = key === "ArrowUp";
    const centre = box.x + box.w / 2;
    let [best, distance] = [current, Infinity];
    for (const index of edges.adjacent[current] || []) {
      const edge = edges.items[index];
      if ((up ? edge.to : edge.from) !== current) continue;
      const other = up ? edge.from : edge.to;
      const target = layout.boxes[other];
      const apart = Math.abs(target.y - box.y) + 0.3 * Math.abs(target.x + target.w / 2 - centre);
      if (apart < distance) [best, distance] = [other, apart];
    }
    return best;
  }

  function firstVisible(view) {
    const [left, top, right, bottom] = view.visible();
    const { boxes } = view.layout;
    const inside = (box) => box.x + box.w > left && box.x < right && box.y + box.h > top && box.y < bottom;
    const found = boxes.findIndex((box) => box.kind !== BOX.frame && inside(box));
    return found >= 0 ? found : boxes.length ? 0 : -1;
  }

  function keyboard(view) {
    const select = (index) => {
      if (index < 0) return;
      view.hooks.select(view.itemOf(view.layout.boxes[index]));
      view.reveal(index);
    };
    const end = (last) => {
      const row = last ? view.layout.rows.findLast((one) => view.layout.boxes[one.boxes[0]].parent < 0) : view.layout.rows[0];
      if (row) select(row.boxes[0]);
    };
    view.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { key } = event;
      const page_ = view.height * 0.8;
      const scope = view.selection?.scope;
      if (key.startsWith("Arrow")) {
        if (event.shiftKey) view.pan({ ArrowLeft: 80, ArrowRight: -80 }[key] || 0, { ArrowUp: 80, ArrowDown: -80 }[key] || 0);
        else select(neighbour(view, key));
      } else if (key === "+" || key === "=") view.zoom(STEP);
      else if (key === "-") view.zoom(1 / STEP);
      else if (key === "0") view.fit();
      else if (key === "1") view.zoom(1 / view.scale);
      else if (key === "f") view.reveal(view.boxOf(view.selection), true);
      else if (key === "PageDown") view.pan(0, -page_);
      else if (key === "PageUp") view.pan(0, page_);
      else if (key === "Home") end(false);
      else if (key === "End") end(true);
      else if ((key === "Enter" || key === " ") && scope !== undefined) view.toggle(scope);
      else if (key === "Escape") view.hooks.select(null);
      else if (key === "Backspace" && view.selection) view.hooks.leave(view.selection);
      else return;
      event.preventDefault();
    });
  }

  page.attachInput = (view) => {
    pointer(view);
    keyboard(view);
  };
  page.describe = describe;
})();
