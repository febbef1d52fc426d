// Boxes that scroll show it at their edges, and can be reached and scrolled by keyboard; a link that is a
// formula has a name; on paper, solutions and outputs are unfolded, and folded code is left out (book.css).
(() => {
  const kinds = {
    'div.math mjx-container[display="true"]': "formula",
    ".bd-article div.highlight > pre, .bd-article .cell_output pre": "code",
    ".bd-article .pst-scrollable-table-container": "table",
  };
  const show = ({target: box}) => {       // on which side there is more
    const left = box.scrollLeft > 1;
    const right = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
    box.dataset.more = [left && "left", right && "right"].filter(Boolean).join(" ");
  };
  const reachable = () => {
    for (const [selector, name] of Object.entries(kinds)) {
      for (const box of document.querySelectorAll(selector)) {
        if (box.scrollWidth > box.clientWidth) {
          box.tabIndex = 0;
          box.setAttribute("role", "region");
          box.setAttribute("aria-label", `wide ${name}`);
          box.addEventListener("scroll", show, {passive: true});
          show({target: box});
        } else if (box.getAttribute("aria-label") === `wide ${name}`) {
          for (const attribute of ["tabindex", "role", "aria-label", "data-more"]) box.removeAttribute(attribute);
        }
      }
    }
  };
  const named = () => {
    for (const link of document.querySelectorAll(".bd-article a:has(mjx-container)")) {
      link.setAttribute("aria-label", link.textContent.trim());
    }
  };
  addEventListener("load", () => {
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    (typeset || Promise.resolve()).then(reachable).then(named);
  });
  addEventListener("resize", reachable);
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll(".bd-article details:not([open], .above-input)")) fold.open = true;
    for (const fold of document.querySelectorAll(".bd-article .toggle-hidden")) fold.classList.remove("toggle-hidden");
  });
})();
