"""Load a model on Triton with Locust's own command, and watch it in Locust's web UI.

    locust -f examples/locustfile.py --model small_cnn --rate 200 --host http://127.0.0.1:8000

One user is a whole open loop: 200 Poisson arrivals per second that wait for no response. The web UI's start form
has the same options. Locust rounds its percentiles; `loadtest` does not, and reports if a limit is met.
"""

from loadgen.triton_user import TritonHttpUser


class Model(TritonHttpUser):
    """What is sent unless the command line or the start form says otherwise."""

    model_name = "small_cnn"
    rate_per_s = 50
