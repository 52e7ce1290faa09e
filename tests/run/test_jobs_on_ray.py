"""Jobs on Ray, as far as no cluster is needed: what is checked on each machine, the store, and how CPUs are shared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import Override, RunOptions
from compress.errors import ExitCode, UserError
from compress.recipe import LoadedRecipe
from compress.run.jobs import Job, JobSet, hold_cluster, memory, on_ray, require_cluster, runner
from compress.run.jobs.job import list_recipe_paths
from compress.run.jobs.nodes import PACKAGES, check_answer, check_store, describe_here, make_probe
from compress.run.jobs.on_ray import import_ray, share_cluster

HERE: dict[str, str | None] = {"Python": "3.11", "compress-bert": "0.1.0", "torch": "2.13.0"}


def test_cpus_of_a_cluster() -> None:
    assert share_cluster([8, 8], 2) == 8
    assert share_cluster([8, 8], 3) == 4, "with 5, the third would wait"
    assert share_cluster([4, 16], 3) == 5, "the small machine is left out"
    assert share_cluster([4, 16], 5) == 4
    assert share_cluster([4, 16], 1) == 16, "a run does not span two machines"
    assert share_cluster([2], 9) == 1
    assert share_cluster([], 3) == 1


@pytest.mark.parametrize(
    ("on", "variable", "asked"),
    [("ray", "", False), ("ray", "10.0.0.1:6379", True), ("ray://h:10001", "", True), (None, "", False)],
)
def test_a_cluster_elsewhere_is_asked_before_the_work(
    on: str | None, variable: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv(on_ray.ADDRESS, variable)
    monkeypatch.setattr(runner, "require_executor", lambda options: None)
    cluster = SimpleNamespace(leave=lambda: seen.append("left"))
    monkeypatch.setattr(on_ray.RayCluster, "connect", lambda options, most, jobs: seen.append("connected") or cluster)
    require_cluster(RunOptions(on=on))
    assert seen == (["connected", "left"] if asked else [])


class FakeRay:
    """Counts connections; a machine of two CPUs."""

    def __init__(self) -> None:
        self.connected, self.ended = 0, 0

    def is_initialized(self) -> bool:
        return self.connected > self.ended

    def init(self, **_: Any) -> None:
        self.connected += 1

    def shutdown(self) -> None:
        self.ended += 1

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2}}]


def test_a_command_connects_once_and_leaves_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, options = FakeRay(), RunOptions(on="ray://h:10001")
    monkeypatch.setattr(on_ray, "import_ray", lambda _: ray)
    with hold_cluster(options), hold_cluster(options):
        for _ in range(3):
            on_ray.RayCluster.connect(options, None, 1).leave()
        assert (ray.connected, ray.ended) == (1, 0)
    assert (ray.connected, ray.ended) == (1, 1)
    on_ray.RayCluster.connect(options, None, 1).leave()
    assert (ray.connected, ray.ended) == (2, 2), "a command that holds nothing leaves when its jobs are done"


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, None),
        ({"torch": "2.11.0"}, "torch is 2.11.0 on node far: here it is 2.13.0"),
        ({"Python": "3.12"}, "Python is 3.12 on node far"),
        ({"compress-bert": None}, "compress-bert is not installed on node far"),
    ],
)
def test_versions_of_workers(versions: dict[str, Any], said: str | None) -> None:
    answer = {"versions": {**HERE, **versions}, "unshared": [], "missing": []}
    if said is None:
        check_answer("far", answer, HERE)
        return
    with pytest.raises(UserError) as found:
        check_answer("far", answer, HERE)
    assert said in found.value.line()
    assert found.value.code == ExitCode.ENVIRONMENT


def test_a_machine_shares_the_folders_or_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".probe-1").touch()
    probe, shared = make_probe(), [".probe-1"]
    alike = {"versions": describe_here(), "unshared": [], "missing": []}
    assert probe(str(tmp_path), shared, [], PACKAGES) == alike
    lacking = probe(str(tmp_path), shared, ["model", ".probe-1"], PACKAGES)
    assert lacking == {**alike, "missing": ["model"]}
    check_answer("far", lacking, describe_here())  # it is sent
    for written, unshared in (("out/.probe-2", "out"), ("runs/cache", "runs/cache")):
        answer = probe(str(tmp_path), [*shared, written], [], PACKAGES)
        with pytest.raises(UserError, match=f"node far does not see {unshared};"):
            check_answer("far", answer, describe_here())
    assert probe(str(tmp_path / "none"), ["marker"], [], ())["unshared"] == [str(tmp_path / "none")]


def test_what_runs_read_is_looked_for_where_it_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data", "general", "model"):
        (tmp_path / name).mkdir()
    told = [Override("data.source", "data", "x"), Override("teacher", "model", "x")]
    told += [Override("data.unlabelled", "s3://bucket/rows", "x")]
    recipe = LoadedRecipe.read("distilbert-task", told).recipe
    shared = JobSet(tmp_path, RunOptions(), None, {"general_teacher": Path("general")}, None, False)
    assert shared.list_paths([Job("a", recipe, tmp_path / "a", "a")]) == ["data", "general", "model"]
    (tmp_path / "data").rmdir()
    assert shared.list_paths([Job("a", recipe, tmp_path / "a", "a")]) == ["general", "model"], "a name of something"


def test_what_stages_read_is_looked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("general", "small", "words.txt"):
        (tmp_path / name).touch()
    mask = {"strategy": "static", "whole_word": True, "word_list": "words.txt"}
    told = {"stages.0.student": {"model": "small"}, "stages.0.masking": mask, "teacher": "general"}
    overrides = [Override(key, value, "x") for key, value in told.items()]
    assert list_recipe_paths(LoadedRecipe.read("replay-distilbert", overrides).recipe) == [
        "general",
        "small",
        "words.txt",
    ]


def test_a_task_asks_for_memory_by_its_models_but_no_more_than_a_node_has(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(bytes(1000))
    told = [Override("teacher", str(tmp_path / "model"), "x")]
    job = Job("a", LoadedRecipe.read("distilbert-task", told).recipe, tmp_path / "a", "a")
    shared = JobSet(tmp_path, RunOptions(), None, {}, None, False)
    needed = memory.LEAST_BYTES + 5 * 1000
    assert on_ray.choose_bytes(shared, job, [1 << 20, 1 << 40]) == needed
    assert on_ray.choose_bytes(shared, job, [1 << 20]) == 1 << 20, "it would wait for ever"
    assert on_ray.choose_bytes(shared, job, [0]) is None


def nodes(*addresses: str) -> list[dict[str, str]]:
    return [{"NodeManagerAddress": one, "NodeManagerHostname": f"host-{one}"} for one in addresses]


def test_a_file_is_no_store_of_several_machines() -> None:
    with pytest.raises(UserError, match=r"mlflow server --backend-store-uri .* and add --tracking-uri http://"):
        check_store(RunOptions(tracking_uri="sqlite:///x.db"), nodes("10.0.0.1", "10.0.0.2"))
    check_store(RunOptions(tracking_uri="http://server:5000"), nodes("10.0.0.1", "10.0.0.2"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray.util, "find_spec", lambda name: None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pytest.raises(UserError, match=r"Ray is not installed; pip install 'compress-bert\[ray\]'") as found:
        import_ray("ray")
    monkeypatch.setattr(on_ray.util, "find_spec", lambda name: name != "grpc" or None)
    with pytest.raises(UserError, match=r"Ray's client \(grpcio\) is not installed; pip install"):
        import_ray("ray://host:10001")
    assert found.value.code == ExitCode.ENVIRONMENT
