"""The Ansible role of site-configs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.package import tree
from tests.package.clean_root import CleanRoot

ROLE = tree.ROOT / "site-configs/ansible"


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="needs ansible-playbook (Debian: ansible-core)")
def test_ansible_reads_the_playbook_and_the_role() -> None:
    done = subprocess.run(
        ["ansible-playbook", "-i", "malletrain_daemon,", "--syntax-check", "site.yml"],
        cwd=ROLE, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr


@pytest.mark.nightly
@pytest.mark.alone
def test_the_role_brings_up_a_daemon_and_changes_nothing_the_second_time(
    clean_root: CleanRoot, package: Path
) -> None:
    root = clean_root
    asked = root.run("apt-get update -q && apt-get install -y -q --no-install-recommends ansible-core", check=False)
    if asked.returncode:
        pytest.skip(f"Debian's archive does not answer: {asked.stdout[-200:]}")
    shutil.copytree(ROLE, root.root / "root/ansible")
    (root.root / "root/ansible/inventory").write_text("[malletrain_daemon]\nhead ansible_connection=local\n")
    play = (
        f"cd ansible && ansible-playbook -i inventory site.yml -e malletrain_package=/root/{package.name} "
        '-e \'{"malletrain_users": ["ann"]}\''
    )
    first = root.run(play).stdout
    assert re.search(r"^head +: .* changed=[1-9]\d* .* failed=0 ", first, re.MULTILINE), first
    assert root.run("systemctl is-active malletraind").stdout == "active\n"
    assert "2 nodes" in root.run("su - ann -c 'malletrain status'").stdout
    again = root.run(play).stdout
    assert re.search(r"^head +: .* changed=0 .* failed=0 ", again, re.MULTILINE), again

    changed = root.run(
        f'{play} -e \'{{"malletrain_config": "operators = []\\n[slurm]\\npartition = \\"nowhere\\"\\n"}}\'',
        check=False,
    )
    assert changed.returncode != 0, "a wrong configuration is refused before it is installed"
    assert "nowhere" not in root.run("cat /etc/malletrain/malletrain.toml").stdout
