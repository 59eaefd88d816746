# Runs in the process that is attached to, on a thread of no name, with SETTINGS (JSON). Nothing of it stays there but the
# agent. What goes wrong is reported, and never raised.
import _thread
import json
import os
import sys
import threading


def find():
    """The agent's package: the process's own where it has one, else that of the command. sys.path stays as it is, because
    other packages beside the command's are none of this process's business."""
    import importlib.util

    if "probe_agent" in sys.modules or importlib.util.find_spec("probe_agent") is not None:
        return
    for directory in settings["packages"]:
        file = os.path.join(directory, "probe_agent", "__init__.py")
        if os.path.exists(file):
            where = [os.path.dirname(file)]
            spec = importlib.util.spec_from_file_location("probe_agent", file, submodule_search_locations=where)
            module = sys.modules["probe_agent"] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules["probe_agent"]
                raise
            return
    raise ModuleNotFoundError("no package probe_agent, neither in this Python nor beside the command")


def main():
    try:
        find()
        from probe_agent import attaching

        facts = attaching.attach(settings)
    except BaseException as error:
        facts = {"error": f"{type(error).__name__}: {error}"}
    write(facts)


def write(facts):
    report = os.path.join(settings["directory"], "report")
    try:
        with open(report + ".part", "w") as file:
            json.dump(facts, file)
        os.replace(report + ".part", report)
    except OSError:
        pass


settings = json.loads(SETTINGS)  # noqa: F821
try:
    # The command that asked may have stopped waiting, and have taken it back.
    os.rename(os.path.join(settings["directory"], "ticket"), os.path.join(settings["directory"], "taken"))
except OSError:
    pass
else:
    # A thread that Python knows, since what runs on it asks who it is. A greenlet of gevent or eventlet is none.
    by = str(getattr(_thread.start_new_thread, "__module__", "")).partition(".")[0]
    if by in ("gevent", "eventlet"):
        write({"refused": f"threads are replaced by {by} in it, so nothing can run beside its main thread"})
    else:
        threading.Thread(target=main, name="probe-attach", daemon=True).start()
