// A table as CSV and a picture as SVG, made when somebody asks for them: the page holds nothing twice.
const save = (name, kind, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
};
const offer = (place, label, name, make) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "download";
  button.textContent = label;
  button.setAttribute("aria-label", `Save as ${label}: ${name}`);
  button.addEventListener("click", () => save(name, ...make()));
  place.append(" ", button);
};
const csvOf = (table) => {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const groups = table.tHead.rows.length > 1 ? [...table.tHead.rows[0].cells].flatMap((cell) => Array(cell.colSpan).fill(cell.textContent.trim())) : [];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells].map((cell, n) => `${groups[n] ?? ""} ${cell.textContent.trim()}`.trim());
  const headed = table.querySelector("tr.heading") !== null;
  const lines = [headed ? ["heading", ...heads] : heads];
  for (const body of table.tBodies) {
    const heading = body.querySelector("tr.heading")?.textContent.trim() ?? "";
    for (const row of body.rows) {
      if (row.className === "heading") continue;
      const values = [...row.cells].map((cell) => cell.dataset.sort ?? cell.textContent.trim());
      lines.push(headed ? [heading, ...values] : values);
    }
  }
  return lines.map((line) => line.map(quoted).join(",") + "\r\n").join("");
};
for (const table of document.querySelectorAll("table")) {
  const key = table.closest(".exhibit").id.replace("table-", "");
  offer(table.querySelector(".caption"), "CSV", `${key}.csv`, () => ["text/csv;charset=utf-8", csvOf(table)]);
}
for (const figure of document.querySelectorAll("figure")) {
  const drawing = figure.querySelector("svg");
  const name = `${figure.id.replace("figure-", "")}.svg`;
  offer(figure.querySelector("figcaption"), "SVG", name, () => ["image/svg+xml", new XMLSerializer().serializeToString(drawing)]);
}
