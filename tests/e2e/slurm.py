"""Run a Slurm cluster of one node on this machine, with its own daemons, keys and queue."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_ports
from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun")

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=short Nodes={host} Default=YES MaxTime=60 State=UP
"""


def skip_reason() -> str:
    """Return why this machine cannot run a cluster, or "" if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurmctld slurmd munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons require root"


@contextlib.contextmanager
def run_cluster(root: Path) -> Iterator[Path]:
    """Run a cluster that accepts jobs, and yield its `slurm.conf`. Stop it at the end."""
    for name in ("state", "spool", "munge"):
        (root / name).mkdir(mode=0o700)
    key = root / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    ctld_port, slurmd_port = free_ports(2)
    host = socket.gethostname().partition(".")[0]
    conf = root / "slurm.conf"
    conf.write_text(
        _CONF.format(host=host, root=root, ctld_port=ctld_port, slurmd_port=slurmd_port)
    )
    # In /tmp, the files of a killed cluster would block the next one.
    (root / "mpi.conf").write_text(f"PMIxCliTmpDirBase={root}\n")
    environ = {**os.environ, "SLURM_CONF": str(conf)}
    munge = ("munged", "--force", "--foreground", f"--socket={root}/munge.socket",
             f"--key-file={key}", f"--log-file={root}/munge/log",
             f"--pid-file={root}/munge/pid", f"--seed-file={root}/munge/seed")  # fmt: skip
    with contextlib.ExitStack() as daemons:
        daemons.enter_context(_daemon(munge, root, environ))
        wait_until((root / "munge.socket").exists)
        daemons.enter_context(_daemon(("slurmctld", "-D", "-i", "-f", str(conf)), root, environ))
        daemons.enter_context(_daemon(("slurmd", "-D", "-f", str(conf)), root, environ))
        sinfo = ("sinfo", "--noheader", "--format=%T")
        wait_until(lambda: "idle" in _output(sinfo, environ), timeout_s=60)
        try:
            yield conf
        finally:
            # Tasks keep running after Slurm's daemons have stopped.
            subprocess.run(("scancel", "--user=root"), env=environ, check=False)
            jobs = ("squeue", "--noheader")
            wait_until(lambda: not _output(jobs, environ), timeout_s=60)


@contextlib.contextmanager
def _daemon(command: tuple[str, ...], root: Path, environ: dict[str, str]) -> Iterator[None]:
    with (root / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd=root
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _output(command: tuple[str, ...], environ: dict[str, str]) -> str:
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return result.stdout
