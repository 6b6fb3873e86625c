"""What all tests share: the helpers in tests/support can be imported by name, and no test is timed."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

# A deadline would be an absolute limit on a timing, which a busy machine breaks.
settings.register_profile("tritune", deadline=None)
settings.load_profile("tritune")
