"""The OpenAPI document says what the service does."""

import json
import time
from html import escape

import pytest

from graphcl.serving.description import ADDRESSES, description_page, open_api
from graphcl.serving.requests import Bounds


def references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from references(one)


def test_every_reference_leads_somewhere():
    about = open_api(12, 24, Bounds())
    schemas = about["components"]["schemas"]
    found = {one.removeprefix("#/components/schemas/") for one in references(about)}
    assert found == {"ids", "new", "pairs", "k", "edges"}
    assert found <= set(schemas)
    assert schemas["embedding"]["minItems"] == 24


@pytest.mark.parametrize("path", [path for path, one in ADDRESSES.items() if one.takes])
def test_a_body_has_the_keys_that_are_understood(path, client):
    keys = open_api(12, 24, Bounds())["paths"][path]["post"]["requestBody"]["content"]
    schema = keys["application/json"]["schema"]
    assert schema["additionalProperties"] is False
    for key in ("ids", "new", "pairs", "k", "edges"):
        answer = client.post(path, {"ids": ["node 1"], key: 0})
        unknown = f"unknown key {key!r}" in answer.json()["error"]
        assert unknown == (key not in schema["properties"])


def test_every_example_is_answered(client):
    about = client.get("/openapi.json").json()
    page = client.get("/docs").text
    asked = 0
    for path, verbs in about["paths"].items():
        body = verbs.get("post", {}).get("requestBody", {"content": {}})["content"]
        for example in body.get("application/json", {}).get("examples", {}).values():
            answer = client.post(path, example["value"])
            ends = time.monotonic() + 60
            while (
                answer.status_code == 503 and time.monotonic() < ends
            ):  # labels are learned beside
                time.sleep(0.1)
                answer = client.post(path, example["value"])
            assert answer.status_code == 200, (path, example, answer.text)
            assert escape(json.dumps(example["value"])) in page
            asked += 1
    assert asked == 9


def test_the_page_escapes_the_name():
    page = description_page(open_api(1, 1, Bounds()), "<b>")
    assert "<b>" not in page
    assert all(f"{path}</code>" in page for path in ADDRESSES)
