"""``python -m cook`` is ``cook``."""

from cook.cli.main import run

run()
