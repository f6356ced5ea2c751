"""The servers of a comparison: each on a free loopback port, with its files in a folder of its own,
gone with the block that started it. Should this process be killed, the kernel ends them
(`setpriv --pdeathsig`).

Not here: what they are asked to do.
"""

import contextlib
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import time

START_S = 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A program did not do what it was started for."""


def command(arguments):
    """The arguments, to be run so that the program never outlives this process."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *map(str, arguments)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(name, arguments_for, folder):
    """Starts a server by `arguments_for(port, data)`; yields (port, pid) once it is reachable."""
    data = pathlib.Path(folder) / name
    data.mkdir()
    port = free_port()
    log = open(data.with_suffix(".log"), "wb")
    server = subprocess.Popen(
        command(arguments_for(port, data)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        await_connection(name, server, port, data.with_suffix(".log"))
        yield port, server.pid
    finally:
        server.kill()
        server.wait()
        log.close()
        shutil.rmtree(data, ignore_errors=True)


def await_connection(name, server, port, log):
    until = time.monotonic() + START_S
    while True:
        if server.poll() is not None:
            raise Failed(f"{name} ended at once: {log.read_text(errors='replace')[-500:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > until:
            raise Failed(f"{name} takes no connections after {START_S} s")
        time.sleep(0.02)


def beanstalkd(folder, log_on):
    """With its log on, as fast as that goes with a promise: synced every 50 ms (its default)."""
    return running(
        "beanstalkd",
        lambda port, data: ["beanstalkd", "-l", "127.0.0.1", "-p", port]
        + (["-b", data, "-f", 50] if log_on else []),
        folder,
    )


def redis(folder):
    """Keeps everything in memory: neither snapshots nor an append-only file, else defaults."""
    return running(
        "redis",
        lambda port, data: ["redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", data]
        + ["--save", "", "--appendonly", "no"],
        folder,
    )


def scheduled_seconds(pid):
    """How long a process with one thread has run, and has waited for a free core."""
    ran, waited, _ = pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def waits_for_disk(pid):
    """Whether a process is in uninterruptible sleep: mostly until a disk has written."""
    return pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"D")


def own_cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def others_cpu_seconds():
    """CPU that the machine has used, less that of this process and of its ended children."""
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [
        int(field)
        for field in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S
    return busy - own_cpu_seconds() - ended.ru_utime - ended.ru_stime
