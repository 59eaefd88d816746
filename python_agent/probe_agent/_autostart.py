"""What `probe_agent.pth` imports at the start of every interpreter that `PROBE` activates. A virtual environment may
process the file twice; the import makes it once."""

from probe_agent import activation


def _install() -> None:
    from probe_agent import agent  # only once torch is there: it loads what torch alone needs

    agent.install()


activation.begin(_install)
