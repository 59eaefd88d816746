"""Pages in a real browser, such as notebooks: JupyterLab or marimo, shown by Debian's Chromium without a screen."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator

import nbformat
import pytest

from conftest import BIN, PROBE, ROOT, Home, wait_for

playwright = pytest.importorskip("playwright.sync_api", reason="needs requirements-browser.txt: make test-all")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")

#: Nothing that a page asks for is outside this machine.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@contextlib.contextmanager
def opened(width: int = 1100, height: int = 1000) -> Iterator[playwright.Page]:
    """An empty page."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(60_000)
            yield page
        finally:
            browser.close()


def pictures() -> pathlib.Path:
    """Where pictures are put: where PROBE_TEST_PICTURES says, else in the build directory."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    made = pathlib.Path(os.environ.get("PROBE_TEST_PICTURES", target / "pictures"))
    made.mkdir(parents=True, exist_ok=True)
    return made


def notebook(path: pathlib.Path, *cells: str) -> pathlib.Path:
    """Writes a notebook of these cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(made, path)
    return path


def lab(home: Home, root: pathlib.Path, theme: str = "Light") -> str:
    """Starts JupyterLab over the notebooks in a directory, and returns its address."""
    own = home.directory / "jupyter"
    for plugin, setting in {
        "apputils-extension/themes": {"theme": f"JupyterLab {theme}"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        # All cells are in the page, and not those alone that can be seen.
        "notebook-extension/tracker": {"windowingMode": "none"},
    }.items():
        file = own / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(setting))
    variables = {
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_DATA_DIR": str(own / "data"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "IPYTHONDIR": str(own / "ipython"),
        "PROBE_BIN": PROBE,
    }
    options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=0", "--expose-app-in-browser"]
    home.spawn(
        str(BIN / "jupyter-lab"), *options, "--IdentityProvider.token=", f"--ServerApp.root_dir={root}", **variables
    )
    (file,) = wait_for("JupyterLab", lambda: list((own / "runtime").glob("jpserver-*.json")))
    return str(json.loads(file.read_text())["url"])


def run_all(page: playwright.Page, address: str, name: str) -> None:
    """Opens a notebook in JupyterLab and runs its cells."""
    page.goto(f"{address}doc/tree/{name}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_function("window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => {})")


def marimo(home: Home, path: pathlib.Path, probe: str) -> str:
    """Starts marimo with a notebook as an application, and returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["run", "--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port), str(path)]
    variables = {"PROBE_BIN": probe, "XDG_CONFIG_HOME": str(home.directory / "config")}
    home.spawn(str(BIN / "marimo"), *options, **variables)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_for("marimo", answers)
    return f"http://127.0.0.1:{port}/"
