"""What the demo trains, as a researcher would: one malleable job, and a search whose trials fill what it leaves."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from malletrain.wire.http import Http
from malletrain.wire.rows import ProfileRow
from scripts.play.site import BIN, Site

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, DATA = ROOT / "scripts/play/digits_search.py", ROOT / "examples/digits_data.py"

#: Epochs of the job: most of a play of 150 s.
EPOCHS = 20

#: The job's node range.
NODES = "1-4"

#: Its held pilots: a machine too busy to yield in time loses one to each preemption.
TASKS = 32

#: Seconds that the search has to take its trials back.
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: trials by how they ended, and the best one's value and parameters, if there is one."""

    trials: dict[str, int]
    value: float | None = None
    params: dict[str, Any] | None = None


class Trainings:
    """The job and the search of `user` on a site: call `begin` first, and `stop_search` at the end."""

    def __init__(self, site: Site, user: str = "alice") -> None:
        self._site, self._user = site, user
        self._folder = Path(site.lab.env_for(user)["HOME"]) / "search"
        self._program = str(self._folder / PROGRAM.name)
        self._search: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self.job = 0

    def begin(self) -> None:
        """Submit the job, without a curve: the daemon measures how it scales; and start the search.

        Raises:
            LabError: a command failed; with what it said.
        """
        owner = pwd.getpwnam(self._user)
        self._folder.mkdir()
        for file in (PROGRAM, DATA):
            shutil.copy(file, self._folder)
        # Nice: on a real cluster a pilot does not share processors with slurmctld and the main queue.
        program = shlex.join([sys.executable, self._program, f"--epochs={EPOCHS}"])
        script = self._folder / "mlp.sh"
        script.write_text(
            "#!/bin/bash\n#SBATCH --job-name=mlp\n"
            f"#MALLETRAIN --nodes={NODES} --tasks={TASKS}\nnice -n 19 {program}\n"
        )
        for path in (self._folder, *self._folder.iterdir()):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        self.job = self._site.mtbatch(self._user, script)
        self._log = (self._folder / "search.log").open("w")
        self._search = self._site.lab.popen(
            ["setpriv", "--pdeathsig", "TERM", BIN / "malletrain", "study", "run", self._program, "--hours=1"],
            user=self._user,
            cwd=self._folder,
            stdout=self._log.fileno(),
            stderr=subprocess.STDOUT,
        )

    def stop_search(self) -> None:
        """End the search as Ctrl-C does; its running trials are cancelled."""
        search, self._search = self._search, None
        if search is not None:
            search.send_signal(signal.SIGINT)
            try:
                search.wait(STOP_S)
            except subprocess.TimeoutExpired:
                search.kill()
                search.wait()
        if self._log is not None:
            self._log.close()

    def found(self) -> Found:
        """What the search has found."""
        status = json.loads(self._site.malletrain(self._user, "study", "status", self._program, "--json").stdout)
        best = status["best"][0] if status["best"] else {}
        return Found(status["trials"], next(iter(best.get("values", ())), None), best.get("params"))

    def curve(self, http: Http) -> list[tuple[int, float]]:
        """(nodes, samples/s) of the job as far as they are measured; empty when it is over.

        Raises:
            WireError: the daemon does not answer.
        """
        profile = ProfileRow.from_json(http.get(f"/v1/jobs/{self.job}/profile"))
        return [(size.nodes, size.rate) for size in profile.sizes if size.windows]

    def static_run(self) -> str:
        """What the job prints when it is run on one node, without a daemon."""
        done = subprocess.run(
            [sys.executable, self._program, f"--epochs={EPOCHS}", "--sample-s=0"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout
