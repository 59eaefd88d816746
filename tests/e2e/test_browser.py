"""What a person sees of `trainprobe` in JupyterLab and marimo. Pictures are left beside the test's other files, to be looked at."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from browser import lab, marimo, needs_chromium, notebook, opened, pictures, run_all

from conftest import PROBE, ROOT, SCRIPTS, Home

pytestmark = [pytest.mark.extended, needs_chromium]

CONNECT = "import trainprobe as probe\nrun = probe.connect('tiny')"
NOW = "SELECT rank, EXTRACT(SECOND FROM now()) AS seconds FROM python.steps LIMIT 1"


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_a_live_view_in_jupyterlab(theme: str, home: Home, tmp_path: pathlib.Path) -> None:
    training = home.train("python", str(SCRIPTS / "train_and_wait.py"), name="tiny")
    training.wait_for_step(7)
    root = tmp_path / "notebooks"
    root.mkdir()
    notebook(root / "live.ipynb", f"{CONNECT}\nrun.live(every=0.2)", f"run.watch({NOW!r}, every=0.2)")
    address = lab(home, root, theme)
    with opened() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        run_all(page, address, "live.ipynb")
        live, watch = page.locator(".trainprobe-live").nth(0), page.locator(".trainprobe-live").nth(1)
        live.locator("tbody tr").wait_for()
        watch.locator("tbody tr").wait_for()
        assert live.locator("figcaption").all_inner_texts() == [
            "Step time, ms",
            "Throughput, samples/s",
            "Parts of a step, mean of 8, ms",
        ]
        # Elements stay while what they say changes.
        page.evaluate("document.querySelectorAll('.trainprobe-live *').forEach((element) => (element.before = true))")
        first = watch.locator("tbody td").nth(1).inner_text()
        page.wait_for_function(
            "([view, first]) => view.querySelectorAll('tbody td')[1].textContent !== first",
            arg=[watch.element_handle(), first],
        )
        made = "[...document.querySelectorAll('.trainprobe-live *')].filter((element) => !element.before).length"
        assert page.evaluate(made) == 0
        assert page.evaluate("document.querySelectorAll('.jp-OutputArea-output img').length") == 0
        assert live.get_attribute("data-dark") == str(theme == "Dark").lower()
        page.screenshot(path=pictures() / f"live-{theme.lower()}.png")
        watch.get_by_role("button", name="Pause").click()
        watch.get_by_role("button", name="Resume").wait_for()
        assert watch.get_by_role("status").inner_text() == "paused"
        training.process.terminate()
        page.wait_for_function(
            "(view) => view.querySelector('.status').textContent.includes('has ended; these are its last values')",
            arg=live.element_handle(),
        )
        assert (
            live.get_by_role("img").first.get_attribute("aria-label").startswith("Step time: lines by step; latest: ")
        )
        page.screenshot(path=pictures() / f"live-ended-{theme.lower()}.png")
        assert errors == [] and all(url.startswith((address, "data:", "blob:")) for url in asked)


def test_the_investigation_in_jupyterlab(home: Home, tmp_path: pathlib.Path) -> None:
    for name in ("investigate.ipynb", "train_gpt.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    address = lab(home, tmp_path)
    with opened(height=1200) as page:
        run_all(page, address, "investigate.ipynb")
        # The prompt of the last cell has a number when it is done.
        last = page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt")
        page.wait_for_function(
            "(prompt) => /\\[\\d+\\]/.test(prompt.textContent)", arg=last.element_handle(), timeout=200_000
        )
        errors = page.locator(
            "[data-mime-type='application/vnd.jupyter.stderr'], .jp-OutputArea-output[data-mime-type*='error']"
        )
        assert errors.all_inner_texts() == []
        panel = "document.querySelector('.jp-WindowedPanel-outer')"
        bottom = last.evaluate(f"(prompt) => prompt.getBoundingClientRect().bottom + {panel}.scrollTop")
        for number, top in enumerate(range(0, int(bottom), 1000), 1):
            page.evaluate(f"{panel}.scrollTop = {top}")
            page.screenshot(path=pictures() / f"investigate-{number}.png")
        assert page.locator(".jp-OutputArea-output svg").count() >= 1


def test_views_and_pages_in_marimo(home: Home, tmp_path: pathlib.Path) -> None:
    training = home.train("python", str(SCRIPTS / "train_and_wait.py"), name="tiny")
    training.wait_for_step(7)
    (tmp_path / "live.py").write_text(
        "import marimo\n\napp = marimo.App()\n\n"
        "@app.cell\ndef _():\n    import trainprobe as probe\n\n    run = probe.connect('tiny')\n    run.live(every=0.2)\n    return (run,)\n\n"
        "@app.cell\ndef _(run):\n    run.crash()\n    return\n\n"
        "@app.cell\ndef _(run):\n    run['python.steps']\n    return\n\n"
        "@app.cell\ndef _(run):\n    run.steps().plot(y='duration')\n    return\n"
    )
    address = marimo(home, tmp_path / "live.py", PROBE)
    with opened(height=1600) as page:
        page.goto(address)
        page.wait_for_function("document.querySelector('marimo-anywidget') !== null")
        page.locator(".trainprobe-live tbody tr").first.wait_for()
        page.screenshot(path=pictures() / "marimo.png")
        training.process.terminate()
        page.get_by_text("has ended; these are its last values").wait_for()
