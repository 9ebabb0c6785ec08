"""Files that GitHub reads: workflows, issue forms and the citation."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
JOBS = [
    pytest.param(job, id=f"{path.stem}-{name}")
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
]


def loaded(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_there_is_a_form_for_each_kind_of_report():
    assert [path.stem for path in FORMS] == ["bottleneck", "false-verdict", "wrong-number"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_summary_and_the_journal(path):
    form = loaded(path)
    fields = {part["id"]: part for part in form["body"]}
    assert form["name"]
    assert form["description"]
    assert len(fields) == len(form["body"])
    assert {part["type"] for part in form["body"]} <= {"dropdown", "input", "textarea"}
    assert "`perf-callbacks show DIR --json`" in fields["show"]["attributes"]["label"]
    assert ".zip" in fields["journal"]["attributes"]["description"]


def test_the_citation_names_the_package_and_its_licence():
    found = loaded(ROOT / "CITATION.cff")
    assert (found["title"], found["license"], found["cff-version"]) == ("perf_callbacks", "Apache-2.0", "1.2.0")
    assert found["authors"] == [{"name": "perf_callbacks contributors"}]


def test_there_are_workflows_for_tests_and_releases():
    assert [path.stem for path in WORKFLOWS] == ["release", "tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_grants_no_right_to_write(path):
    assert loaded(path)["permissions"] in ({}, {"contents": "read"})


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_in_time_and_only_publishing_may_sign(job):
    writes = {name for name, right in job.get("permissions", {}).items() if right == "write"}
    publishes = any("pypi-publish" in step.get("uses", "") for step in job["steps"])
    assert writes == ({"id-token"} if publishes else set())
    assert ("environment" in job) is publishes
    assert job["timeout-minutes"] <= 60


def test_an_action_is_one_commit_with_its_version_beside_it():
    text = "".join([path.read_text(encoding="utf-8") for path in WORKFLOWS])
    used = re.findall(r"uses: *(.*)", text)
    pinned = [re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", one) for one in used]
    assert used
    assert [one for one, found in zip(used, pinned, strict=True) if found is None] == []
    assert len({*used}) == len({found[1] for found in pinned if found})


def test_the_tests_call_targets_of_the_makefile():
    targets = loaded(ROOT / ".github/workflows/tests.yml")["jobs"]["make"]["strategy"]["matrix"]["target"]
    made = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets == ["lint", "test", "test-all"]
    assert {*targets} <= {*made}
