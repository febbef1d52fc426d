"""Read by JupyterLab when it is started in this folder, by `make lab` or in any other way."""

from pathlib import Path

c = get_config()  # noqa: F821
chapters = Path(__file__).resolve().parent / "chapters"

# A chapter is listed once, as its notebook; its text is edited elsewhere, and opens by its name.
c.ContentsManager.hide_globs = ["__pycache__", "*.py[co]", ".DS_Store", "*~",
                                *(f"{path.stem}.md" for path in sorted(chapters.glob("*.ipynb")))]
c.LabApp.default_url = "/lab/tree/chapters/index.ipynb"
