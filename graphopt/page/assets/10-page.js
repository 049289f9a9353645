"use strict";

/*
 * The object `page`, which all scripts extend: payload, creation of elements, sections, events, formats.
 *
 * All names and texts of a payload originate from a model, and are untrusted. They reach the document only as
 * text nodes, attribute values, and text of a canvas; no script writes markup.
 */
const page = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const sections = new Map(); // name → function that fills the section
  const listeners = new Map(); // event → functions
  const initialized = new Set();

  const payload = JSON.parse(document.getElementById("data").textContent);

  /** Set attributes of an element: `text`, `class`, listeners (`onclick`), and others by their names. */
  function assign(element, attributes) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "text") element.textContent = value;
      else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else element.setAttribute(key, value === true ? "" : value);
    }
    return element;
  }

  function append(element, children) {
    for (const child of children || []) if (child !== null && child !== undefined) element.append(child);
    return element;
  }

  /** An HTML element: `page.el("button", {class: "quiet", text: "Fit", onclick: fit}, children)`. */
  function el(tag, attributes, children) {
    return append(assign(document.createElement(tag), attributes), children);
  }

  /** An SVG element, with the same arguments as `el`. */
  function svg(tag, attributes, children) {
    return append(assign(document.createElementNS(SVG, tag), attributes), children);
  }

  /** Register the function that fills a section; it is called when the section is shown for the first time. */
  function section(name, init) {
    sections.set(name, init);
  }

  function on(event, listener) {
    if (!listeners.has(event)) listeners.set(event, []);
    listeners.get(event).push(listener);
  }

  function emit(event, detail) {
    for (const listener of listeners.get(event) || []) listener(detail);
  }

  const element = (name) => document.getElementById(`section-${name}`);
  const names = () => [...document.querySelectorAll("main > section")].map((section) => section.dataset.name);

  /** Fill a section, unless that has happened. */
  function initialize(name) {
    if (!element(name) || initialized.has(name) || !sections.has(name)) return;
    initialized.add(name);
    sections.get(name)(element(name).querySelector(".content"), (payload.sections || {})[name], payload);
  }

  /** Show one section, and hide the others. */
  function show(name) {
    for (const other of names()) {
      const tab = document.getElementById(`tab-${other}`);
      element(other).classList.toggle("shown", other === name);
      tab.setAttribute("aria-selected", String(other === name));
      tab.tabIndex = other === name ? 0 : -1;
    }
    document.body.dataset.section = name;
    initialize(name);
    emit("section", name);
  }

  /** Show a section, and record it in the address, such that Back returns to the previous one. */
  function visit(name) {
    if (location.hash === `#${name}`) show(name);
    else location.hash = name;
  }

  /** The section in the address, otherwise the first. */
  function addressed() {
    const name = location.hash.slice(1);
    return names().includes(name) ? name : names()[0];
  }

  /** The arrow keys move between tabs, which are one stop of the Tab key. */
  function moveBetweenTabs(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = names();
    const next = all[(all.indexOf(addressed()) + step + all.length) % all.length];
    visit(next);
    document.getElementById(`tab-${next}`).focus();
    event.preventDefault();
  }

  function start() {
    document.documentElement.classList.add("scripted");
    document.getElementById("tabs").addEventListener("keydown", moveBetweenTabs);
    window.addEventListener("hashchange", () => show(addressed()));
    // All sections are printed, also those that have not been shown.
    window.addEventListener("beforeprint", () => {
      names().forEach(initialize);
      emit("print", true);
    });
    window.addEventListener("afterprint", () => emit("print", false));
    if (names().length) show(addressed());
    performance.mark("interactive");
    document.documentElement.dataset.ready = "true";
  }

  const format = {
    count: (value) => value.toLocaleString("en-US"),
    number: (value, digits = 3) => (value === 0 ? "0" : String(Number(value.toPrecision(digits)))),
    percent: (share, digits = 1) => `${(100 * share).toFixed(digits)} %`,
    bytes(value) {
      const units = ["B", "kB", "MB", "GB", "TB"];
      let unit = 0;
      while (Math.abs(value) >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
      return `${unit ? value.toFixed(value < 10 ? 2 : 1) : value} ${units[unit]}`;
    },
    seconds(value) {
      if (value === 0) return "0 s";
      const [factor, unit] = Math.abs(value) >= 1 ? [1, "s"] : Math.abs(value) >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
      return `${Number((value * factor).toPrecision(3))} ${unit}`;
    },
    signed: (value) => (value > 0 ? `+${format.count(value)}` : value < 0 ? `−${format.count(-value)}` : "0"),
  };

  document.addEventListener("DOMContentLoaded", start);
  return { payload, el, svg, section, on, emit, show, visit, initialize, format };
})();
