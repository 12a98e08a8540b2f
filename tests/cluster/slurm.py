"""Run a Slurm of one node for a test. Its daemons, keys and state are in a folder, and end with the test."""

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.processes import ROOT, free_port, wait_for

#: Commands of the Debian packages slurmctld, slurmd, slurm-client and munge, in this order.
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
DAEMON_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PATIENCE = 600  # timeout of a job in seconds

# A requeued job waits until credentials of its first start have expired (`cred_expire`). There are four processors, on
# any machine, for two turns of two; and two GPUs, which exist in name only.
CONFIGURATION = """
ClusterName=petra
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=120
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
"""
GPUS = "NodeName={host} Name=gpu File=/dev/null,/dev/zero\n"


def missing() -> list[str]:
    """Return the required commands that are not installed."""
    return [name for name in NEEDED if shutil.which(name, path=DAEMON_PATH) is None]


class Slurm:
    """Run the cluster.

    Args:
        folder: Empty folder for all its files.
        environment: Environment variables of its jobs, in addition to this process's.

    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment, "PATH": DAEMON_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "spool"):
            (folder / name).mkdir()
        values = {"folder": folder, "user": getpass.getuser(), "host": "localhost"}
        ports = {"controller_port": free_port(), "node_port": free_port()}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**values, **ports))
        (folder / "gres.conf").write_text(GPUS.format(**values))
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def start(self) -> None:
        """Start all daemons, and wait until the node accepts jobs."""
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "seed"}
        options = [f"--{option}={self._folder / file}" for option, file in files.items()]
        # --force: the parent folder for temporary files is writable for all users.
        self._start("munged", "--foreground", "--force", f"--log-file={self._folder / 'munged.log'}", *options)
        wait_for((self._folder / "munge.socket").exists)
        self._start("slurmctld", "-D")
        wait_for(lambda: " is UP" in self._answer("scontrol", "ping"), seconds=60)
        self._start("slurmd", "-D", "-N", "localhost")
        wait_for(lambda: self._answer("sinfo", "--noheader", "--format=%t").strip() == "idle", seconds=60)

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        try:
            if "slurmctld" in self._daemons:
                for how in ((), ("--signal=KILL", "--full")):
                    self._answer("scancel", *how, f"--user={getpass.getuser()}")
                wait_for(lambda: not self._answer("squeue", "--noheader"), seconds=60)
        finally:
            for name in ("slurmd", "slurmctld", "munged"):
                if daemon := self._daemons.pop(name, None):
                    daemon.terminate()
                    try:
                        daemon.wait(30)
                    except subprocess.TimeoutExpired:
                        daemon.kill()
                        daemon.wait()

    def call(self, *command: str) -> str:
        """Run a command of Slurm in the folder of the job scripts, and return its output."""
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, text=True, capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *arguments: str) -> str:
        """Submit these arguments to `sbatch`, and return the number of the job."""
        return self.call("sbatch", "--parsable", *arguments)

    def turns(self, job: str) -> dict[str, str]:
        """Return the state of each turn of an array that has started or waits, by its number."""
        lines = self.call("squeue", "--noheader", "--states=all", "--array", f"--jobs={job}", "--format=%K %T")
        return dict(line.split() for line in lines.splitlines())

    def ended(self, job: str) -> dict[str, str]:
        """Return the states of all turns, after all have ended."""
        going = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}
        return dict(wait_for(lambda: not going & set((turns := self._slowly(job)).values()) and turns, PATIENCE))

    def log(self, job: str, turn: int) -> str:
        """Return the output of a turn so far."""
        file = self._folder / f"slurm-{job}_{turn}.out"
        return file.read_text() if file.exists() else ""

    def _slowly(self, job: str) -> dict[str, str]:
        time.sleep(0.5)
        return self.turns(job)

    def _answer(self, *command: str) -> str:
        return subprocess.run(command, env=self._environment, text=True, capture_output=True).stdout

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=DAEMON_PATH)
        assert program is not None
        with (self._folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [program, *arguments], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )
