/*
 * Drawing of a graph view. Only boxes and edges in the visible rectangle are drawn; texts, curves and borders from a
 * scale on at which they can be read.
 */
(() => {
  const BOX = page.BOX;
  const DETAIL = 0.42; // scale from which boxes have texts
  const CURVES = 0.16; // scale from which edges are curves
  const MOTION = 5000; // edges that are drawn while the camera moves
  const FATE_MARKS = ["", "+", "=", "−", "⊂"]; // made, folded, removed, absorbed
  const { family: FONT, head: HEAD, line: LINE } = page.canvasFonts;
  const cut = new Map(); // font, width and text → shortened text

  /** A text that fits the width. */
  function fitted(context, text, width) {
    if (text.length * 9 < width) return text;
    const key = `${context.font}|${Math.round(width)}|${text}`;
    if (cut.has(key)) return cut.get(key);
    let result = text;
    if (context.measureText(text).width > width) {
      let [low, high] = [1, text.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      result = `${text.slice(0, low)}…`;
    }
    if (cut.size > 20000) cut.clear();
    cut.set(key, result);
    return result;
  }

  function trace(path, points, straight) {
    path.moveTo(points[0], points[1]);
    if (straight) {
      path.lineTo(points.at(-2), points.at(-1));
      return;
    }
    for (let index = 2; index < points.length; index += 2) {
      const [x0, y0, x1, y1] = [points[index - 2], points[index - 1], points[index], points[index + 1]];
      if (x0 === x1 && y1 >= y0) path.lineTo(x1, y1);
      else if (y1 > y0) path.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
      else path.bezierCurveTo(x0, y0 + 60, x1, y1 - 60, x1, y1); // against the direction of layers
    }
  }

  function arrow(path, points) {
    const [x, y] = [points.at(-2), points.at(-1)];
    path.moveTo(x - 4, y - 7);
    path.lineTo(x, y);
    path.lineTo(x + 4, y - 7);
  }

  function rounded(context, box, radius) {
    context.beginPath();
    context.roundRect(box.x, box.y, box.w, box.h, radius);
  }

  function paintEdges(view, context, indexes, chosen) {
    const { edges, scale } = view;
    const straight = scale < CURVES;
    context.lineWidth = Math.max(1.1, 0.8 / scale);
    context.strokeStyle = page.color("edge");
    context.globalAlpha = straight ? 0.45 : view.dimmed ? 0.4 : 0.85;
    const drawn = view.inMotion && indexes.length > MOTION ? indexes.filter((_, position) => position % Math.ceil(indexes.length / MOTION) === 0) : indexes;
    for (let start = 0; start < drawn.length; start += 400) {
      context.beginPath();
      for (const index of drawn.slice(start, start + 400)) {
        trace(context, edges.items[index].points, straight);
        if (scale > 0.35) arrow(context, edges.items[index].points);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
    if (!chosen.length) return;
    context.lineWidth = Math.max(2, 1.6 / scale);
    context.strokeStyle = page.color("accent");
    context.beginPath();
    for (const index of chosen) {
      trace(context, edges.items[index].points, straight);
      if (scale > 0.2) arrow(context, edges.items[index].points);
    }
    context.stroke();
  }

  /** The types of values beside the beginnings of their edges. */
  function paintTypes(view, context, indexes) {
    if (view.scale < 0.8 || view.inMotion) return;
    const { edges, graph, layout } = view;
    context.font = `10px ${FONT}`;
    context.textAlign = "left";
    const written = new Set();
    for (const index of indexes) {
      const edge = edges.items[index];
      const value = edge.values[0];
      const type = graph.valueType(value);
      const from = layout.boxes[edge.from];
      if (!type || edge.values.length > 1 || written.has(edge.from) || from.kind === BOX.scope) continue;
      written.add(edge.from);
      const dims = /\[.*\]/.exec(type);
      const text = fitted(context, dims ? dims[0].slice(1, -1).replaceAll(", ", "×") || "scalar" : type, 130);
      const [x, y] = [edge.points[0] + 5, edge.points[1] + 11];
      context.lineWidth = 3;
      context.strokeStyle = page.color("canvas");
      context.strokeText(text, x, y);
      context.fillStyle = page.color("muted");
      context.fillText(text, x, y);
    }
  }

  function paintFrame(view, context, box) {
    const { scale } = view;
    rounded(context, box, 8);
    context.fillStyle = page.color("frame");
    context.fill();
    context.lineWidth = Math.max(1, 1 / scale);
    context.strokeStyle = page.color("frame-border");
    context.stroke();
    if (scale < 0.3) return;
    context.textAlign = "left";
    context.fillStyle = page.color("muted");
    context.font = `600 12px ${FONT}`;
    context.fillText(fitted(context, `▾ ${box.name}`, box.w - 20), box.x + 10, box.y + 17);
  }

  function paintNode(view, context, box, color) {
    const { graph } = view;
    const fate = graph.data.nodes.fate[box.id];
    rounded(context, box, 5);
    context.fillStyle = page.color("node");
    context.fill();
    if (color) {
      context.save();
      context.clip();
      context.globalAlpha *= 0.16;
      context.fillStyle = color;
      context.fillRect(box.x, box.y, box.w, box.h);
      context.globalAlpha /= 0.16;
      context.fillRect(box.x, box.y, 6, box.h);
      context.restore();
      rounded(context, box, 5);
    }
    context.lineWidth = 1.2;
    context.strokeStyle = color || page.color("node-border");
    context.setLineDash(fate >= 2 ? [5, 3] : []);
    context.stroke();
    context.setLineDash([]);
    const name = graph.shortName(box.id);
    const middle = box.x + box.w / 2 + (color ? 3 : 0);
    context.textAlign = "center";
    context.fillStyle = page.color("text");
    context.font = HEAD;
    const two = name && name !== graph.shortOp(box.id);
    context.fillText(fitted(context, graph.shortOp(box.id), box.w - 18), middle, box.y + (two ? 17 : 24));
    if (two) {
      context.font = LINE;
      context.fillStyle = page.color("muted");
      context.fillText(fitted(context, name, box.w - 18), middle, box.y + 31);
    }
    if (fate) {
      context.font = `700 12px ${FONT}`;
      context.textAlign = "right";
      context.fillStyle = page.color("muted");
      context.fillText(FATE_MARKS[fate], box.x + box.w - 4, box.y + 12);
    }
  }

  function paintScope(view, context, box, shares, changed) {
    rounded(context, box, 7);
    context.fillStyle = page.color("scope");
    context.fill();
    context.lineWidth = 1.4;
    context.strokeStyle = page.color("frame-border");
    context.stroke();
    context.textAlign = "center";
    context.fillStyle = page.color("text");
    context.font = HEAD;
    context.fillText(fitted(context, `▸ ${box.name}`, box.w - 16), box.x + box.w / 2, box.y + 17);
    context.font = LINE;
    context.fillStyle = page.color("muted");
    const count = `${page.format.count(box.nodes)} nodes${changed ? `, ${page.format.count(changed)} changed` : ""}`;
    context.fillText(fitted(context, count, box.w - 16), box.x + box.w / 2, box.y + 32);
    paintShares(context, box, shares);
  }

  /** The colours of the nodes of a scope, by their shares, in a strip at its lower edge. */
  function paintShares(context, box, shares) {
    let x = box.x + 8;
    for (const [color, share] of shares || []) {
      const width = share * (box.w - 16);
      context.fillStyle = color || page.color("node-border");
      context.fillRect(x, box.y + box.h - 11, Math.max(0.5, width - 0.5), 5);
      x += width;
    }
  }

  function paintEnd(view, context, box) {
    rounded(context, box, box.h / 2);
    context.fillStyle = page.color("end");
    context.fill();
    context.lineWidth = 1.2;
    context.strokeStyle = page.color("node-border");
    context.stroke();
    context.textAlign = "center";
    context.fillStyle = page.color("text");
    context.font = `12px ${FONT}`;
    context.fillText(fitted(context, view.graph.valueName(box.id), box.w - 20), box.x + box.w / 2, box.y + 19);
  }

  function paintSimple(context, box, color) {
    const first = Array.isArray(color) ? color.find(([css]) => css)?.[0] : color;
    context.fillStyle = first || page.color(box.kind === BOX.input || box.kind === BOX.output ? "muted" : "node-border");
    context.fillRect(box.x, box.y, box.w, box.h);
  }

  /** Boxes with a node of a highlight, and the box of the selection, with an outline. */
  function outlines(view, context, indexes) {
    const width = Math.max(2.5, 2 / view.scale);
    const outline = (box, color) => {
      context.lineWidth = width;
      context.strokeStyle = color;
      context.beginPath();
      context.roundRect(box.x - width, box.y - width, box.w + 2 * width, box.h + 2 * width, 7);
      context.stroke();
    };
    for (const [className, boxes] of view.marked()) {
      for (const index of indexes) if (boxes.has(index)) outline(view.layout.boxes[index], page.color(`highlight-${className}`));
    }
    const selected = view.boxOf(view.selection);
    if (selected >= 0) outline(view.layout.boxes[selected], page.color("accent"));
  }

  /** Per highlight, the boxes of its nodes. */
  page.GraphView.prototype.marked = function marked() {
    return [...this.highlights].map(([className, nodes]) => {
      const boxes = new Set();
      for (const node of nodes) boxes.add(this.layout.boxOfNode[node]);
      return [className, boxes];
    });
  };

  page.paintGraph = (view) => {
    const { context, layout, edges, scale } = view;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = page.color("canvas");
    context.fillRect(0, 0, view.canvas.width, view.canvas.height);
    context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * view.offset[0], ratio * view.offset[1]);
    const area = view.visible();
    const boxes = view.grids.boxes.query(...area) || layout.boxes.keys().toArray();
    const lines = view.grids.lines.query(...area) || edges.items.keys().toArray();
    const selected = view.boxOf(view.selection);
    let chosen = selected >= 0 ? edges.adjacent[selected] || [] : [];
    if (view.selection && view.selection.value !== undefined) chosen = chosen.filter((index) => edges.items[index].values.includes(view.selection.value));
    const marked = view.dimmed ? new Set(view.marked().flatMap(([, indexes]) => [...indexes])) : null;

    for (const index of boxes) if (layout.boxes[index].kind === BOX.frame) paintFrame(view, context, layout.boxes[index]);
    paintEdges(view, context, lines, chosen);
    for (const index of boxes) {
      const box = layout.boxes[index];
      if (box.kind === BOX.frame) continue;
      context.globalAlpha = marked && !marked.has(index) ? 0.35 : 1;
      if (scale < DETAIL) paintSimple(context, box, view.colors[index]);
      else if (box.kind === BOX.node) paintNode(view, context, box, view.colors[index]);
      else if (box.kind === BOX.scope) paintScope(view, context, box, view.colors[index], view.changed[index]);
      else paintEnd(view, context, box);
    }
    context.globalAlpha = 1;
    paintTypes(view, context, lines);
    outlines(view, context, boxes);
  };

  page.tracePath = trace;
  page.fateMarks = FATE_MARKS;
})();
