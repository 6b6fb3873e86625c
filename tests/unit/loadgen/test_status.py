import errno

from loadgen.status import (
    CLIENT_LIMIT,
    NOT_CONNECTED,
    outcome_name,
    outcome_of_connect_error,
    outcome_of_grpc,
    outcome_of_http,
)


def test_every_status_keeps_its_number_in_a_byte() -> None:
    for status in (201, 301, 302, 400, 401, 404, 429, 499, 500, 503, 504):
        outcome = outcome_of_http(status)
        assert 0 < outcome < 256
        assert outcome_name(outcome) == ("http other" if status == 499 else f"http {status}")


def test_statuses_of_http_and_grpc_share_no_number() -> None:
    http = {outcome_of_http(status) for status in range(201, 600)}
    grpc = {outcome_of_grpc(status) for status in range(1, 17)}
    plain = set(range(1, 7))
    assert len(grpc) == 16
    assert not http & grpc
    assert not (http | grpc) & plain
    assert max(http | grpc) < 256


def test_a_full_table_of_files_is_the_clients_fault() -> None:
    assert outcome_of_connect_error(OSError(errno.EMFILE, "")) == CLIENT_LIMIT
    assert outcome_of_connect_error(OSError(errno.ECONNREFUSED, "")) == NOT_CONNECTED
