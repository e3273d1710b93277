"""The how-tos name nothing that is not there."""

import re
from pathlib import Path

import click
import pytest

from malletrain import config
from malletrain.cli.main import COMMANDS, cli
from malletrain.config.sections import Config
from malletrain.daemon.main import command
from malletrain.slurm.submission.batch_request import request
from malletrain.slurm.submission.directives import BatchOptions
from malletrain.wire.address import Address

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "docs/how-to/admin-install.md"
METRIC = re.compile(r"\b(malletrain_\w+)")
ADMIN = sorted(INSTALL.parent.glob("admin-*.md"))
TEXTS = sorted([*INSTALL.parent.glob("*.md"), *(ROOT / "docs/quick-start").glob("[!t]*.md")])


def calls_in(text: str) -> list[tuple[str, str]]:
    """(command, rest of the line) of each call of `malletrain`."""
    return re.findall(
        r"(?:^|[`/]|(?<!from)(?<!sudo -u) )malletrain ([a-z]+)((?: --[a-z-]+| [^`\n#|-]\S*)*)", text, re.MULTILINE
    )


def test_calls_are_found() -> None:
    assert [name for file in TEXTS for name, _ in calls_in(file.read_text())].count("status") > 1


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.stem)
def test_every_command_option_and_file_that_is_named_exists(file: Path) -> None:
    text = file.read_text()
    called = calls_in(text)
    for name, rest in called:
        assert name in COMMANDS, name
        known = cli.get_command(click.Context(cli), name)
        assert known is not None
        if known.context_settings.get("ignore_unknown_options"):  # what follows a script is the script's
            continue
        commands = [known, *(known.commands.values() if isinstance(known, click.Group) else ())]
        options = {option for each in commands for parameter in each.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options
    daemon_options = {option for parameter in command.params for option in parameter.opts}
    for rest in re.findall(r"malletraind((?: --[a-z-]+)+)", text):
        assert set(rest.split()) <= daemon_options
    for named in re.findall(r"site-configs/[\w./-]+", text):
        assert (ROOT / named.rstrip(".,")).exists(), named
    for link in re.findall(r"\]\((\.\.?/[^)#]+)", text):
        assert (file.parent / link).is_file(), link


def test_users_are_made_before_sacctmgr_names_them() -> None:
    """slurmctld looks them up then, and not again."""
    text = INSTALL.read_text()
    assert text.index("systemd-sysusers\n") < text.index("\nid malletrain") < text.index("add user name=malletrain")
    assert text.index("\nid ann") < text.index("add user name=ann")


def test_the_admins_how_to_uses_the_daemons_own_places() -> None:
    text = "\n".join(page.read_text() for page in ADMIN)
    assert str(config.SYSTEM_FILE) in text
    assert f"port {Config().api.port}" in text
    # The guide to installation names files of packages and variables of Ansible so.
    named = [name for page in ADMIN if page.stem != "admin-install" for name in METRIC.findall(page.read_text())]
    assert named
    for name in named:
        from malletrain.daemon.metrics import Metrics
        from tests.daemon.test_metrics import Clock

        metrics = Metrics(Clock())
        assert name in metrics.render().decode(), name


def test_the_script_of_independent_items_is_one_that_mtbatch_takes() -> None:
    text = (ROOT / "docs/how-to/independent-items.md").read_text()
    script = text.split("```bash\n")[1].split("```")[0].encode()
    found = request(script, "predict.sh", BatchOptions(), (), Address("", "harvest"), "/home/ann")
    assert (found.elastic, found.min_nodes, found.max_nodes, found.total_samples) == ("tasks", 1, 16, 360.0)
