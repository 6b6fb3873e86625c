"""Load a model on Triton with Locust's own command, and watch it in Locust's web UI.

    MODEL=small_cnn RATE=200 locust -f examples/locustfile.py --users 1 --host http://127.0.0.1:8000

One user is a whole open loop: 200 Poisson arrivals per second that wait for no response. Locust rounds its
percentiles; `loadtest` does not, and reports if a limit is met.
"""

from __future__ import annotations

import os

from loadgen.triton_user import TritonHttpUser


class Model(TritonHttpUser):
    """The model and its rate come from the environment; the server's address from Locust's --host."""

    model_name = os.environ.get("MODEL", "small_cnn")
    rate_per_s = float(os.environ.get("RATE", "50"))
