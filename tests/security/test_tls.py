"""The shipped HAProxy configuration in front of the API, with a certificate of the site's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.slurm.submission.sbatch import InvalidBatch
from malletrain.wire.address import Address, AddressError, read, write
from malletrain.wire.daemon import client_at
from malletrain.wire.daemon_url import client_context, with_trust
from malletrain.wire.errors import WireError
from malletrain.wire.http import DaemonUnavailable
from malletrain.wire.messages import Standing
from malletrain.wire.worker_client import DaemonUnreachable, PilotIdentity, WorkerClient
from scripts.lab.ports import free_port
from tests.api.house import Caller, House
from tests.messages import naming
from tests.security.two_users import ARRAYS, HIS, RUNNING, Site, name_of, node_of
from tests.slurm.test_sbatch import GOOD, ask
from tests.waiting import wait_until

SHIPPED = Path(__file__).resolve().parents[2] / "site-configs" / "haproxy.cfg"

pytestmark = pytest.mark.skipif(
    not (shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") and shutil.which("openssl")),
    reason="needs haproxy and openssl: apt-get install haproxy openssl",
)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    """A site's own CA, and what it certifies."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    @staticmethod
    def make(folder: Path) -> Authority:
        folder.mkdir()
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=site CA", "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem",
        )  # fmt: skip
        return Authority(folder)

    def certify(self, name: str, alternative: str) -> Path:
        """One PEM file with certificate and key."""
        made = self.folder / name
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{made}.key", "-out", f"{made}.csr",
        )  # fmt: skip
        made.with_suffix(".ext").write_text(f"subjectAltName={alternative}\n")
        openssl(
            "x509", "-req", "-in", f"{made}.csr", "-CA", f"{self.folder}/ca.pem", "-CAkey", f"{self.folder}/ca.key",
            "-days", "2", "-extfile", f"{made.with_suffix('.ext')}", "-out", f"{made}.crt",
        )  # fmt: skip
        both = made.with_suffix(".pem")
        both.write_text(Path(f"{made}.crt").read_text() + Path(f"{made}.key").read_text())
        return both


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("pki") / "site")


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Callable[[House, Path], str]]:
    """Starts the shipped configuration with this certificate in front of the house; the URL."""
    running: list[subprocess.Popen[bytes]] = []

    def start(house: House, certificate: Path) -> str:
        port = free_port()
        text = SHIPPED.read_text()
        for theirs, ours in {
            "/etc/haproxy/malletrain.pem": str(certificate),
            "bind :8471": f"bind 127.0.0.1:{port}",
            "127.0.0.1:8470": f"127.0.0.1:{house.server.port}",
        }.items():
            assert text.count(theirs) >= 1
            text = text.replace(theirs, ours)
        file = tmp_path / "haproxy.cfg"
        file.write_text(text)
        path = f"{os.environ['PATH']}:/usr/sbin"
        program = shutil.which("haproxy", path=path)
        assert program
        checked = subprocess.run([program, "-c", "-f", str(file)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "WARNING" not in checked.stderr
        running.append(subprocess.Popen([program, "-db", "-f", str(file)], stderr=subprocess.DEVNULL))
        url = f"https://127.0.0.1:{port}"
        house.auth._audiences = (url,)
        wait_until(lambda: listens(port))
        return url

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_people_and_workers_speak_tls(
    site: Site, ca: Authority, proxy: Callable[[House, Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = proxy(site.house, ca.certify("head", "IP:127.0.0.1,DNS:head1.example.org"))
    person = client_at(Address(url, ca=str(ca.certificate)), {"MUNGE_SOCKET": site.house.munge_socket})
    assert person.jobs() == ()
    # The worker's file is named by the variable, as mtbatch writes it into the script.
    monkeypatch.setenv("MALLETRAIN_CA", str(ca.certificate))
    worker = WorkerClient(
        url, PilotIdentity(HIS, 1, ARRAYS[HIS], RUNNING[0], 0, node_of(HIS, RUNNING[0])),
        lambda: site.house.credential("malletrain-worker-v1", url),
    )  # fmt: skip
    site.house.uid_seen = 1002
    assert worker.hello().worker == name_of(HIS, RUNNING[0])
    directive = worker.poll(0, 0.5)
    assert directive is not None
    worker.report([])


def test_a_worker_that_hangs_up_is_noticed_through_the_proxy(
    site: Site, ca: Authority, proxy: Callable[[House, Path], str]
) -> None:
    """A lost worker is found by that first; HAProxy keeps the daemon's side open without `option abortonclose`."""
    import http.client

    url = proxy(site.house, ca.certify("head", "IP:127.0.0.1"))
    token = site.hello(1002, HIS, RUNNING[0], credential=site.house.credential("malletrain-worker-v1", url)).json()[
        "token"
    ]
    name = name_of(HIS, RUNNING[0])
    host = url.removeprefix("https://")
    connection = http.client.HTTPSConnection(host, context=client_context(str(ca.certificate)), timeout=20)
    seq = site.directive(HIS, RUNNING[0], token)["seq"]
    connection.request(
        "GET", f"/v1/workers/{name}/plan?after={seq}&wait=60", headers={"Authorization": f"Bearer {token}"}
    )
    wait_until(lambda: bool(site.house.gate._waiting))
    connection.close()

    def dropped() -> bool:
        known = site.members.worker(name)
        return known is not None and known.dropped

    wait_until(dropped)


def test_another_certificate_is_refused(
    house: House, ca: Authority, proxy: Callable[[House, Path], str], tmp_path: Path
) -> None:
    stranger = Authority.make(tmp_path / "stranger")
    url = proxy(house, ca.certify("head", "IP:127.0.0.1"))
    for trusted in (str(stranger.certificate), ""):  # another CA, the system's
        client = client_at(Address(url, ca=trusted), {"MUNGE_SOCKET": house.munge_socket})
        with pytest.raises(DaemonUnavailable, match=naming("certificate")):
            client.jobs()
    worker = WorkerClient(url, PilotIdentity(1, 1, 1, 0, 0, "n0"), lambda: "none")
    with pytest.raises(DaemonUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        worker.hello(Standing(1, (), 0, "", 1))


def test_a_certificate_of_another_host_is_refused(
    house: House, ca: Authority, proxy: Callable[[House, Path], str]
) -> None:
    url = proxy(house, ca.certify("other", "DNS:other.example.org"))
    client = client_at(Address(url, ca=str(ca.certificate)), {"MUNGE_SOCKET": house.munge_socket})
    with pytest.raises(DaemonUnavailable, match="certificate"):
        client.jobs()


def test_an_address_has_so_many_connections_through_the_proxy(
    house: House, ca: Authority, proxy: Callable[[House, Path], str]
) -> None:
    token = house.token(1001)
    url = proxy(house, ca.certify("head", "IP:127.0.0.1"))
    port = int(url.rpartition(":")[2])
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(ConnectionResetError):  # as early as in connect()
            for _ in range(600):
                last = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            assert last.recv(1) == b"", "beyond 512 the proxy hangs up"
        assert Caller(house, token).get("/v1/jobs").status_code == 200, "the daemon sees none of them"


def test_the_file_of_certificates_is_named_in_client_toml_and_reaches_the_pilots(
    ca: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "client.toml"
    write(Address("https://head:8471", ca=str(ca.certificate)), file)
    assert read(file).ca == str(ca.certificate)
    environ = with_trust({"HOME": "/home/ada"}, str(ca.certificate))
    script = ask(GOOD).materialize(3, "https://head:8471", "/bin/python", environ).script.decode()
    assert f"  export MALLETRAIN_CA={ca.certificate}\n" in script
    assert "MALLETRAIN_CA" not in ask(GOOD).materialize(3, "http://h", "/bin/python", {}).script.decode()
    with pytest.raises(InvalidBatch, match=naming("MALLETRAIN_CA: 'ca.pem'", "absolute")):
        ask(GOOD).materialize(3, "https://h", "/bin/python", {"MALLETRAIN_CA": "ca.pem"})
    file.write_text("ca = 3\n")
    with pytest.raises(AddressError, match=naming("ca:", "text")):
        read(file)


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(WireError, match=r"nowhere\.pem: .*certificates"):
        client_context(str(tmp_path / "nowhere.pem"))
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    with pytest.raises(WireError, match=r"empty\.pem: .*certificates"):
        client_context(str(empty))
