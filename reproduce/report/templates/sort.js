// Sorting by a click on a column's head, within each group of rows; without it the page says everything, in the paper's order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  [...heads].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("heading"));
        body.append(...rows.sort((a, b) => sign * compare(value(a), value(b))));
      }
    });
  });
}
