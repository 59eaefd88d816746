"""What every interpreter imports at its start where this folder is on PYTHONPATH."""

import quick_start  # noqa: F401
