"""A stand-in for `conda run`, which can't be installed from PyPI: a Python process that writes a shell script, which activates
an environment (CONDA_PREFIX, PATH) and runs the command, runs that with its own variables, and prints what it printed when
it has ended. Arguments: the command."""

import os
import shlex
import subprocess
import sys
import tempfile

prefix = os.path.dirname(os.path.dirname(sys.executable))
with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
    lines = [f"export CONDA_PREFIX={shlex.quote(prefix)}", f'export PATH={shlex.quote(prefix)}/bin:"$PATH"']
    script.write("\n".join([*lines, shlex.join(sys.argv[1:]), ""]))
    script.flush()
    done = subprocess.run(["bash", script.name], env=os.environ.copy(), capture_output=True, text=True)
print(done.stdout)
print(done.stderr, file=sys.stderr)
sys.exit(done.returncode)
