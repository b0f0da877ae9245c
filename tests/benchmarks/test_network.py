"""The benchmark over a slow link, where the system lets us make one."""

import json
import shutil
import subprocess

import pytest

from helpers import forks
from helpers.benchmarks import FOLDER

SIZES = ("--hidden-size", "64", "--heads", "4", "--layers", "2", "--tokens", "32", "--steps", "2")


def may_make_namespaces() -> bool:
    if not all(shutil.which(name) for name in ("unshare", "ip", "tc")):
        return False
    script = "mount -t tmpfs none /run && ip netns add rank0 && ip link add veth0 netns rank0 type veth peer name veth1"
    made = subprocess.run(["unshare", "-Urnm", "sh", "-c", script], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.slow
def test_interfaces_send_what_is_counted() -> None:
    if not may_make_namespaces():
        pytest.skip("no network namespaces and veth pairs here")
    code, told, errors = forks.run(FOLDER / "network.py", *SIZES, "--rate", "100mbit", "--json", timeout=240)
    assert code == 0, errors
    values = {figure["name"]: figure["value"] for figure in json.loads(told)}
    for name in ("tensor parallel, dense", "by head", "by head, shuffle"):
        counted, sent = values[f"{name}: counted"], values[f"{name}: sent by the interface"]
        messages = values[f"{name}: collectives"]
        # Beyond the numbers, headers and acknowledgements of a few packets a message.
        assert counted <= sent <= 1.2 * counted + 1500 * messages
    assert values["by head: counted"] < values["by head, shuffle: counted"] < values["tensor parallel, dense: counted"]
