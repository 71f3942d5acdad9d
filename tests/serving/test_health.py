import pytest

from graphcl.serving.health import address_of, is_alive

STARTED = ["graphcl", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]


@pytest.mark.parametrize(
    ("more", "address"),
    [
        ([], "http://127.0.0.1:8000/health"),
        (["--port", "9000"], "http://127.0.0.1:9000/health"),
        (["--port=9000", "--ssl-certfile", "/c.pem"], "https://127.0.0.1:9000/health"),
        (["--ssl-certfile=/c.pem", "--ssl-keyfile=/k.pem"], "https://127.0.0.1:8000/health"),
        (["--host", "::"], "http://[::1]:8000/health"),
        (["--host", "192.0.2.7"], "http://192.0.2.7:8000/health"),
    ],
)
def test_the_address_follows_the_options(more, address):
    assert address_of([*STARTED, *more]) == address


def test_nobody_who_answers_is_no_health():
    assert not is_alive([*STARTED, "--port", "1"])
    assert not is_alive([*STARTED, "--port", "x"])
