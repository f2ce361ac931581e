"""``python -m cook``, and what the ``cook`` command runs."""

import signal

# Until main() takes over, Ctrl-C ends cook as SIGTERM does: no traceback of half an import.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from cook.cli.main import run

if __name__ == "__main__":
    run()
