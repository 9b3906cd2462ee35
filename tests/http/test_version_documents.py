"""Version documents of all APIs. Load balancers check services with HEAD and OPTIONS, without a token."""

from __future__ import annotations

from kilonova.http.client import InProcess
from tests.http.test_rate_limits import all_apis
from tests.support import run


def test_head_and_options_are_answered_as_get() -> None:
    async def scenario() -> None:
        app = all_apis()
        caller = InProcess(app)
        paths = [f"/{prefix}{route.path}" for prefix, api in app.apis.items() for route in api.document_routes.values()]
        roots = {path for path in paths if path.count("/") == 2 and path.endswith("/")}
        assert roots == {"/compute/", "/identity/", "/image/", "/network/", "/share/", "/volume/"}
        versions = {
            "/compute/v2",
            "/compute/v2.1",
            "/identity/v3",
            "/image/v2",
            "/network/v2.0",
            "/share/v2",
            "/volume/v3",
        }
        assert versions <= {*paths}
        for path in paths:
            for spelling in (path, path.rstrip("/"), path.rstrip("/") + "/"):
                shown = await caller.request("GET", spelling)
                assert shown.status in (200, 300), spelling
                head = await caller.request("HEAD", spelling)
                assert (head.status, head.body) == (shown.status, b"")
                assert head.headers["content-length"] == str(len(shown.body))
                options = await caller.request("OPTIONS", spelling)
                assert (options.status, options.body) == (shown.status, shown.body)
            refused = await caller.request("POST", path)
            assert refused.status == 405
            assert refused.headers["allow"] == "GET, HEAD, OPTIONS"

    run(scenario())


def test_placement_takes_only_get() -> None:
    """As the real service: clients of Placement know 405."""

    async def scenario() -> None:
        caller = InProcess(all_apis())
        for method, status in (("GET", 200), ("HEAD", 405), ("OPTIONS", 405)):
            for path in ("/placement", "/placement/"):
                assert (await caller.request(method, path)).status == status

    run(scenario())


def test_other_paths_need_the_method() -> None:
    async def scenario() -> None:
        caller = InProcess(all_apis())
        for method in ("HEAD", "OPTIONS"):
            answer = await caller.request(method, "/compute/v2.1/servers", headers={"X-Auth-Token": "member"})
            assert answer.status == 405

    run(scenario())
