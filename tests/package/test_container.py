# SPDX-License-Identifier: MIT
"""The examples for containers: their commands exist, and the job's environment is that of the image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

import bagua_net

CONTAINER = Path(__file__).resolve().parents[2] / "examples" / "container"
SECONDS = 60


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bagua_net", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_the_images_commands_exist() -> None:
    steps = re.findall(r"^RUN (.*)$", (CONTAINER / "Dockerfile").read_text(), re.MULTILINE)
    commands = [words.split() for step in steps for words in re.findall(r"bagua-net ([a-z]+(?: --[a-z]+)*)", step)]
    assert ["enable", "--system"] in commands
    for name, *options in commands:
        shown = _run(name, "--help").stdout
        assert [option for option in options if option not in shown] == [], f"bagua-net {name}"


def test_the_jobs_environment_is_that_of_the_image() -> None:
    service, job = yaml.safe_load_all((CONTAINER / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    library = Path(environment["NCCL_NET_PLUGIN"])
    assert environment == bagua_net.env(library)
    assert str(library) in _run("enable", "--system", "--force", "--dry-run").stderr
    # The first pod's name is the address where the ranks meet.
    assert (service["kind"], service["metadata"]["name"]) == ("Service", pod["subdomain"])
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert f"--master-addr={job['metadata']['name']}-0.{pod['subdomain']}" in container["args"]
