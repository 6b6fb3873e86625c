"""What all tests share: the helpers in tests/support can be imported by name, and no test is timed."""

import signal
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# A deadline would be an absolute limit on a timing, which a busy machine breaks.
settings.register_profile("tritune", deadline=None)
settings.load_profile("tritune")

# Started in the background of a script, this process ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
