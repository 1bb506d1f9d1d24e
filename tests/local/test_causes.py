"""The causes of a 422: field, reason and text of each error."""

from __future__ import annotations

from typing import Any

import pytest
from lab.local.client import CORE, JOBS, Client
from tests.local.test_api import job

Object = dict[str, Any]


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]} | spec}


@pytest.mark.parametrize(
    ("body", "reason", "field", "text"),
    [
        (job(workers=0), "Invalid", "spec.workers", "Invalid value: 0: spec.workers in body should be "),
        (job(workers="two"), "TypeInvalid", "spec.workers", 'Invalid value: "string": spec.workers in body '),
        (job(restartedAt="soon"), "TypeInvalid", "spec.restartedAt", 'Invalid value: "soon": spec.restarted'),
        (
            job(launcher="Ssh"),
            "NotSupported",
            "spec.launcher",
            'Unsupported value: "Ssh": supported values: ',
        ),
        (job(env=[{"value": "1"}]), "Required", "spec.env[0].name", "Required value"),
        (job(command=["x"] * 2000), "TooMany", "spec.command", "Too many: 2000: must have at most "),
        (job(workingDir="x" * 5000), "TooLong", "spec.workingDir", "Too long: may not be more than "),
    ],
)
async def test_an_error_of_a_job_names_its_field_and_reason(
    api: Client, body: Object, reason: str, field: str, text: str
):
    cause = (await causes(api, JOBS, body))[0]
    assert (cause["reason"], cause["field"]) == (f"FieldValue{reason}", field)
    assert cause["message"].startswith(text)


@pytest.mark.parametrize(
    ("body", "reason", "field", "text"),
    [
        (pod(containers=[]), "Required", "spec.containers", "Required value"),
        (
            pod(restartPolicy="No"),
            "NotSupported",
            "spec.restartPolicy",
            'Unsupported value: "No": supported ',
        ),
        (pod(volumes=[{"name": "v"}] * 2), "Duplicate", "spec.volumes[1].name", 'Duplicate value: "v"'),
        (pod(activeDeadlineSeconds=0), "Invalid", "spec.activeDeadlineSeconds", "Invalid value: 0: must be "),
        (
            pod(containers=[{"name": "a", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/"}]}]),
            "NotFound",
            "spec.containers[0].volumeMounts[0].name",
            'Not found: "v"',
        ),
    ],
)
async def test_an_error_of_a_pod_names_its_field_and_reason(
    api: Client, body: Object, reason: str, field: str, text: str
):
    (cause,) = await causes(api, f"{CORE}/pods", body)
    assert (cause["reason"], cause["field"]) == (f"FieldValue{reason}", field)
    assert cause["message"].startswith(text)


async def test_a_key_with_a_colon_is_quoted_whole(api: Client):
    body = {"metadata": {"name": "x"}, "data": {'a: "b"': "1"}}
    (cause,) = await causes(api, f"{CORE}/configmaps", body)
    assert cause["field"] == 'data[a: "b"]'
    assert cause["message"].startswith(r'Invalid value: "a: \"b\"": a valid config key must consist of ')


async def test_a_forbidden_option_is_a_cause_too(api: Client):
    query = {"watch": "1", "resourceVersionMatch": "Exact"}
    _, answer = await api.call("GET", f"{CORE}/pods", **query)
    (cause,) = answer["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueForbidden", "resourceVersionMatch")


async def test_a_fault_of_a_status_is_found_below_status(api: Client):
    made = await api.create(JOBS, job())
    _, answer = await api.call("PUT", f"{JOBS}/x/status", made | {"status": {"state": 7}})
    assert answer["details"]["causes"][0] == {
        "reason": "FieldValueTypeInvalid",
        "message": 'Invalid value: "integer": state in body must be of type string: "integer"',
        "field": "status.state",
    }


async def causes(api: Client, path: str, body: Object) -> list[Object]:
    status, answer = await api.call("POST", path, body)
    assert (status, answer["reason"]) == (422, "Invalid"), answer
    return answer["details"]["causes"]


@pytest.mark.parametrize("part", ["containers", "initContainers"])
@pytest.mark.parametrize("quantity", ["many", "1.2.3"])
async def test_a_malformed_quantity_is_no_pod(api: Client, part: str, quantity: str):
    container = {"name": "c", "image": "b", "resources": {"limits": {"cpu": quantity}}}
    status, answer = await api.call("POST", f"{CORE}/pods", pod(**{part: [container]}))
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert "quantities must match" in answer["message"]
