"""The API's own description, from which tests/security/test_fuzz.py sends, names what the page does."""

from __future__ import annotations

from pathlib import Path

from tests.api.house import House


def test_the_description_names_every_route(house: House) -> None:
    described = set(house.app.openapi()["paths"])
    assert {"/v1/session", "/v1/jobs", "/v1/jobs/{job_id}", "/v1/status", "/v1/events", "/v1/drain"} <= described
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"
    undocumented = [path for path in described if path not in page.read_text(encoding="utf-8")]
    assert undocumented == []
