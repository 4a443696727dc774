// A table that is filled again and again: rows keep their place in the document, so that a reader's focus and selection stay.

const MOST_ROWS = 500;

// Each column is {title, value: row => text or number, text?: value => text, className?: row => text}. Numbers are sorted as such.
export class LiveTable {
  constructor(parent, { id, title, nothing, columns, key, sortBy, descending }) {
    this.columns = columns;
    this.key = key;
    this.sort = { column: Math.max(0, columns.findIndex((column) => column.title === sortBy)), descending: Boolean(descending) };
    this.nothing = nothing;
    this.rows = new Map();
    this.latest = { rows: [], filter: "" };

    const section = element("section", { "aria-labelledby": id });
    section.append(element("h2", { id }, title));
    this.note = section.appendChild(element("p", { class: "note" }));
    this.wide = element("div", { class: "wide", role: "region", tabindex: "0", "aria-labelledby": id });
    const table = element("table", { "aria-labelledby": id });
    const head = table.appendChild(element("thead")).appendChild(element("tr"));
    this.heads = columns.map((column, at) => {
      const cell = head.appendChild(element("th", { scope: "col" }));
      const button = cell.appendChild(element("button", { type: "button" }, column.title));
      button.addEventListener("click", () => this.sortByColumn(at));
      return cell;
    });
    this.body = table.appendChild(element("tbody"));
    this.wide.append(table);
    section.append(this.wide);
    parent.append(section);
  }

  sortByColumn(at) {
    this.sort = { column: at, descending: this.sort.column === at ? !this.sort.descending : false };
    this.fill(this.latest.rows, this.latest.filter);
  }

  // Shows those rows that contain the words of the filter.
  fill(rows, filter) {
    this.latest = { rows, filter };
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows
      .map((row) => ({ key: this.key(row), cells: this.columns.map((column) => cell(column, row)) }))
      .filter(({ cells }) => {
        const text = cells.map((one) => one.text).join(" ").toLowerCase();
        return words.every((word) => text.includes(word));
      });
    const { column, descending } = this.sort;
    const order = (a, b) => compare(a.cells[column].value, b.cells[column].value) * (descending ? -1 : 1);
    // Rows that are alike stay in the order of their keys.
    found.sort((a, b) => order(a, b) || compare(a.key, b.key));
    const shown = found.slice(0, MOST_ROWS);
    this.heads.forEach((head, at) => {
      head.classList.toggle("number", shown.length > 0 && typeof shown[0].cells[at].value === "number");
      if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.note.textContent = this.count(rows.length, found.length, shown.length);
    this.wide.hidden = rows.length === 0;
    this.place(shown);
  }

  count(all, found, shown) {
    if (all === 0) return this.nothing;
    if (shown < found) return `${shown} of ${found} rows: filter or sort to see others`;
    return found === all ? `${all} ${all === 1 ? "row" : "rows"}` : `${found} of ${all} rows`;
  }

  place(shown) {
    const kept = new Map();
    let next = this.body.firstChild;
    for (const { key, cells } of shown) {
      const row = this.rows.get(key) ?? element("tr");
      kept.set(key, row);
      cells.forEach((one, at) => {
        const place = row.children[at] ?? row.appendChild(element("td"));
        if (place.textContent !== one.text) place.textContent = one.text;
        if (place.className !== one.className) place.className = one.className;
      });
      if (row === next) next = next.nextSibling;
      else this.body.insertBefore(row, next);
    }
    for (const [key, row] of this.rows) if (!kept.has(key)) row.remove();
    this.rows = kept;
  }
}

function cell(column, row) {
  const value = column.value(row);
  const text = value === null || value === undefined ? "–" : column.text ? column.text(value) : String(value);
  const classes = [typeof value === "number" ? "number" : "", column.className?.(row) ?? ""];
  return { value, text, className: classes.filter(Boolean).join(" ") };
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true });
}

export function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (text) made.textContent = text;
  return made;
}
