"""The API keeps to its own description, whatever is sent (schemathesis over every route)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from malletrain.api.rate_limits import ApiLimits
from malletrain.domain.event import Event, EventKind, JobAnnounced
from malletrain.domain.job import MalleableJob
from tests.api.house import House
from tests.world import event_of


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory, munged: str) -> Iterator[House]:
    """A house with a job in it, and no bound on the rate."""
    house = House(
        tmp_path_factory.mktemp("furnished"),
        munged,
        limits=ApiLimits(address_rate=1e9, token_rate=1e9),
    )
    job = MalleableJob(1, "digits", "ada", 1001, "", min_nodes=1, max_nodes=4, submitted_at=1.0)
    house.journal.append(
        [
            Event(1.0, JobAnnounced(job), 1),
            event_of(2.0, EventKind.TASKS_ADDED, 1, data={"array_id": 7, "tasks": [0]}),
            event_of(3.0, EventKind.PILOT_STARTED, 1, "7_0", "n000", data={"started_at": 3.0}),
            event_of(4.0, EventKind.METRIC, 1, data={"name": "loss", "value": float("nan")}),
        ]
    )
    yield house
    house.close()


@pytest.fixture(scope="module")
def api_schema(furnished: House) -> Any:
    return schemathesis.openapi.from_url(f"{furnished.address}/v1/openapi.json")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_every_route_answers_as_described(furnished: House, api_schema: Any) -> None:
    """schemathesis' own cases, as strategies: each route gets sound and unsound ones."""
    headers = {"Authorization": f"Bearer {furnished.token(0)}"}
    seen = set()
    for found in api_schema.get_all_operations():
        operation = found.ok()
        if operation.label == "DELETE /v1/session":
            continue  # it would end the token

        @given(case=operation.as_strategy())
        @settings(max_examples=15, suppress_health_check=list(HealthCheck))
        def keeps_to_it(case: Any) -> None:
            if "wait" in (case.query or {}):
                case.query["wait"] = 0.01
            case.validate_response(case.call(headers=headers, timeout=60), checks=CHECKS)

        keeps_to_it()
        seen.add(operation.label)
    assert {"POST /v1/jobs", "GET /v1/events", "POST /v1/jobs/{job_id}/cancel", "GET /v1/health"} <= seen


def test_the_description_names_every_route(furnished: House, api_schema: Any) -> None:
    described = set(api_schema.raw_schema["paths"])
    assert {"/v1/session", "/v1/jobs", "/v1/jobs/{job_id}", "/v1/status", "/v1/events", "/v1/drain"} <= described
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"
    undocumented = [path for path in described if path not in page.read_text(encoding="utf-8")]
    assert undocumented == []
