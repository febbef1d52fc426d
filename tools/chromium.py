"""A Chromium: the one of CHROMIUM, one on PATH, or, for root on Debian or Ubuntu, the distribution's."""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NAME_ONE = "CHROMIUM=/path/to/chromium make accessible"


def found():
    """The path of a Chromium, or None. Who names one gets that one or none."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


def ensured():
    """The path of a Chromium, which is installed where that can be done; otherwise a sentence, and the end."""
    if found():
        return found()
    if os.environ.get("CHROMIUM"):
        sys.exit(f"There is no {os.environ['CHROMIUM']}. Name a Chromium: {NAME_ONE}")
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        print("Installing Chromium from the distribution (once)", flush=True)
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)      # an old list may still do
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium",
                        "fonts-dejavu-core"], **quiet)
        if found():
            return found()
    sys.exit("There is no Chromium on PATH. Install the package chromium (as root on Debian: apt-get install "
             f"chromium), or name one: {NAME_ONE}")


if __name__ == "__main__":
    print(ensured())
