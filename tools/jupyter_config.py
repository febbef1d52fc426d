"""What JupyterLab lists and opens first: `make lab`, and Binder."""

from pathlib import Path

c = get_config()  # noqa: F821
root = Path(__file__).resolve().parent.parent

# A chapter is listed once, as its notebook; its text is edited elsewhere, and opens by its name.
c.ContentsManager.hide_globs = ["__pycache__", "*.py[co]", ".DS_Store", "*~",
                                *(f"{path.stem}.md" for path in sorted(root.glob("chapters/*.ipynb")))]
c.ServerApp.root_dir = str(root)
c.LabApp.default_url = "/lab/tree/chapters/index.ipynb"
# Jupytext would open a page of the book as a notebook, and save it as one.
c.ServerApp.jpserver_extensions = {"jupyterlab_jupytext": False, "jupytext": False}
