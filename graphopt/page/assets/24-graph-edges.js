/*
 * Edges between the boxes of a layout, as lists of points that curves connect, and a grid for queries by rectangle.
 *
 * Edges of nodes in collapsed scopes are lifted to the box of the scope, and joined. An edge over several layers
 * passes through a channel beside the boxes between its ends, if there is one nearby.
 */
(() => {
  const BOX = page.BOX;
  const MARGIN = 11; // between a channel and boxes, in pixels
  const REACH = 900; // maximum distance of a channel from its edge
  const SPAN = 80; // layers; longer edges pass straight behind boxes
  const EFFORT = 3e6; // tests of rows per layout
  const CELL = 640; // of the grid, in pixels

  class GraphEdges {
    constructor(layout) {
      this.layout = layout;
      this.items = []; // {from, to, value, count, points: [x0, y0, x1, y1, …], bounding box}
      this.effort = 0;
      this.connect();
      this.adjacent = layout.boxes.map(() => null);
      this.items.forEach((edge, index) => {
        for (const end of [edge.from, edge.to]) (this.adjacent[end] ||= []).push(index);
      });
    }

    connect() {
      const { layout } = this;
      const { graph } = layout;
      const { edges } = graph;
      const joined = new Map();
      const add = (from, to, value) => {
        if (from < 0 || to < 0 || from === to) return;
        const key = from * layout.boxes.length + to;
        const known = joined.get(key);
        if (known) {
          if (!known.values.includes(value) && known.values.length < 50) known.values.push(value);
          known.count += 1;
          return;
        }
        const edge = { from, to, values: [value], count: 1 };
        joined.set(key, edge);
        this.items.push(edge);
      };
      for (let index = 0; index < edges.from.length; index++) {
        add(layout.boxOfNode[edges.from[index]], layout.boxOfNode[edges.to[index]], edges.value[index]);
      }
      for (const [value, box] of layout.boxOfInput) for (const node of graph.readersOf(value)) add(box, layout.boxOfNode[node], value);
      for (const [value, box] of layout.boxOfOutput) {
        const producer = graph.producer[value];
        if (producer >= 0) add(layout.boxOfNode[producer], box, value);
      }
      for (const edge of this.items) this.route(edge);
    }

    /** The points of an edge: lower edge of its source, a channel, upper edge of its target. */
    route(edge) {
      const { boxes } = this.layout;
      const [a, b] = [boxes[edge.from], boxes[edge.to]];
      const start = [a.x + a.w / 2, a.y + a.h];
      const end = [b.x + b.w / 2, b.y];
      edge.points = [...start];
      if (end[1] > start[1]) {
        const rows = this.effort < EFFORT ? this.rowsBetween(edge.from, edge.to) : [];
        const x = rows.length && rows.length < SPAN ? this.channel(rows, (start[0] + end[0]) / 2, end[0]) : null;
        if (x !== null) edge.points.push(x, rows[0].top - 6, x, rows.at(-1).bottom + 6);
      }
      edge.points.push(...end);
      let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
      for (let index = 0; index < edge.points.length; index += 2) {
        [left, right] = [Math.min(left, edge.points[index]), Math.max(right, edge.points[index])];
        [top, bottom] = [Math.min(top, edge.points[index + 1]), Math.max(bottom, edge.points[index + 1])];
      }
      if (end[1] <= start[1]) [top, bottom] = [top - 60, bottom + 60];
      Object.assign(edge, { left, right, top, bottom });
    }

    /** The rows strictly between two boxes, in the innermost layout that contains both. */
    rowsBetween(from, to) {
      const { boxes, rows } = this.layout;
      let [a, b] = [from, to];
      if (boxes[a].parent !== boxes[b].parent) {
        const [above, below] = [this.layout.chain(from), this.layout.chain(to)];
        let common = 0;
        while (common < above.length - 1 && common < below.length - 1 && above[common] === below[common]) common += 1;
        [a, b] = [above[common], below[common]];
      }
      const between = [];
      const { parent } = boxes[a];
      const last = Math.min(boxes[b].row, boxes[a].row + 1 + 40 * SPAN);
      for (let index = boxes[a].row + 1; index < last; index++) {
        if (boxes[rows[index].boxes[0]].parent === parent) between.push(rows[index]); // not the rows of frames inside
      }
      this.effort += Math.max(0, last - boxes[a].row);
      return between;
    }

    /** An x that is free in the rows: the nearest to the left or right of `x`, or null. */
    channel(rows, x, target) {
      const search = (direction) => {
        let candidate = x;
        for (let moved = true, rounds = 0; moved && rounds < 6; rounds++) {
          moved = false;
          for (const row of rows) {
            const blocking = this.blocking(row, candidate);
            if (!blocking) continue;
            candidate = direction > 0 ? blocking.x + blocking.w + MARGIN : blocking.x - MARGIN;
            moved = true;
            if (Math.abs(candidate - x) > REACH) return null;
          }
          this.effort += rows.length;
          if (!moved) return candidate;
        }
        return null;
      };
      if (rows.every((row) => !this.blocking(row, x))) return x;
      const [right, left] = [search(1), search(-1)];
      if (right === null || left === null) return right === null ? left : right;
      const cost = (candidate) => Math.abs(candidate - x) + 0.1 * Math.abs(candidate - target);
      return cost(right) <= cost(left) ? right : left;
    }

    /** The box of a row that a vertical line at x would cross. */
    blocking(row, x) {
      const { boxes } = this.layout;
      let [low, high] = [0, row.boxes.length - 1];
      while (low <= high) {
        const middle = (low + high) >> 1;
        const box = boxes[row.boxes[middle]];
        if (x < box.x - MARGIN + 1) high = middle - 1;
        else if (x > box.x + box.w + MARGIN - 1) low = middle + 1;
        else return box;
      }
      return null;
    }
  }

  /** A grid over rectangles. Those over many cells are in a list that every query reads. */
  class Grid {
    constructor() {
      this.cells = new Map();
      this.large = [];
    }

    insert(item, left, top, right, bottom) {
      const [x0, x1] = [Math.floor(left / CELL), Math.floor(right / CELL)];
      const [y0, y1] = [Math.floor(top / CELL), Math.floor(bottom / CELL)];
      if ((x1 - x0 + 1) * (y1 - y0 + 1) > 40) {
        this.large.push(item);
        return;
      }
      for (let x = x0; x <= x1; x++) {
        for (let y = y0; y <= y1; y++) {
          const key = `${x},${y}`;
          const cell = this.cells.get(key);
          if (cell) cell.push(item);
          else this.cells.set(key, [item]);
        }
      }
    }

    /** Items whose cells meet the rectangle, each once, in the order of insertion; null if that is most of them. */
    query(left, top, right, bottom) {
      const [x0, x1] = [Math.floor(left / CELL), Math.floor(right / CELL)];
      const [y0, y1] = [Math.floor(top / CELL), Math.floor(bottom / CELL)];
      if ((x1 - x0 + 1) * (y1 - y0 + 1) > 4 * this.cells.size + 16) return null;
      const found = new Set(this.large);
      for (let x = x0; x <= x1; x++) {
        for (let y = y0; y <= y1; y++) for (const item of this.cells.get(`${x},${y}`) || []) found.add(item);
      }
      return [...found].sort((a, b) => a - b);
    }
  }

  /** Grids of the boxes and of the edges of a layout; items are indexes. */
  function gridsOf(layout, edges) {
    const [boxes, lines] = [new Grid(), new Grid()];
    layout.boxes.forEach((box, index) => {
      if (box.kind === BOX.frame) boxes.large.push(index);
      else boxes.insert(index, box.x, box.y, box.x + box.w, box.y + box.h);
    });
    edges.items.forEach((edge, index) => lines.insert(index, edge.left, edge.top, edge.right, edge.bottom));
    return { boxes, lines };
  }

  page.GraphEdges = GraphEdges;
  page.gridsOf = gridsOf;
})();
