"""Drives a beanstalkd over one connection, as fast as it answers: commands are laid out in large
buffers beforehand, written without waiting for replies, and the replies are counted. What is
measured is beanstalkd, not Python: beside every rate stands the share of the time in which the
server had work (`server_fed`: it ran, waited for a core, or waited for its disk). Near 1.0, the
client was never what it waited for.

Not here: starting and stopping the server (servers.py), what is compared with what (compare.py).
"""

import re
import select
import socket
import time

from servers import own_cpu_seconds, scheduled_seconds, waits_for_disk

# Commands in one buffer. Larger ones do not help: the server reads a few hundred bytes at a time.
BATCH = 1000
# Bytes read at once at most: more than the socket's buffer holds.
READ_BYTES = 1 << 20
# Reserves on the way to the server. Many more make beanstalkd slower (with 4,000 it needs 1.6 times
# the CPU for a job), fewer leave it without work between two looks.
WINDOW = 1000
# Between looks at the connection. The server answers each command with a write of its own: a client
# that wakes up for each takes a core that the server could use. Window and socket buffers hold far
# more work than this lasts.
PAUSE_S = 0.001
# How long a slow server may take until all jobs that are due are ready.
ALL_READY_S = 30
# The job's time to run: far longer than a round, so that no reservation ends in one.
TTR_S = 3600
RESERVED = re.compile(rb"RESERVED (\d+) \d+\r\n")


class Unexpected(Exception):
    """The server answered something that the work has no place for."""


class Client:
    """One connection to a beanstalkd, on its default tube."""

    def __init__(self, port, pid, payload_bytes):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.pid = pid
        self.body = b"x" * payload_bytes
        self.looks = self.at_disk = 0

    def close(self):
        self.sock.close()

    def schedule(self, timers, over_s=3600):
        """Puts `timers` jobs, delayed by an hour or more and spread over `over_s` seconds."""
        delays = (3600 + number * over_s // timers for number in range(timers))
        puts = {}
        batches = self._batches(
            puts.get(delay) or puts.setdefault(delay, self._put(delay)) for delay in delays
        )
        return self._measured(timers, lambda: self._exchange(batches, b"INSERTED ", timers))

    def fire(self, timers, lead_s):
        """Puts `timers` jobs due in `lead_s` seconds; once all are due reserves and deletes each.

        The clock starts when the last job is due and ready, which leaves beanstalkd's own work of
        moving them from delayed to ready out of the measurement (in its favour).
        """
        due = time.monotonic() + lead_s
        sent = 0
        while sent < timers:
            count = min(BATCH, timers - sent)
            # Whole seconds are all that it knows: each is due within the second after `due`.
            delay = int(due - time.monotonic()) + 1
            if delay < 2:
                raise Unexpected(
                    f"storing {timers} jobs took longer than the {lead_s:.0f} s until they are due"
                )
            self._exchange([self._put(delay) * count], b"INSERTED ", count)
            sent += count
        while self.count("current-jobs-delayed") > 0:
            if time.monotonic() > due + ALL_READY_S:
                raise Unexpected(
                    f"not all of {timers} jobs are ready {ALL_READY_S} s after they were due"
                )
            time.sleep(0.05)
        ready = self.count("current-jobs-ready")
        if ready != timers:
            raise Unexpected(f"{ready} of {timers} jobs are ready")
        result = self._measured(timers, lambda: self._reserve_and_delete(timers))
        result["lost"] = self.count("current-jobs-ready") + self.count("current-jobs-reserved")
        return result

    def count(self, name):
        """One figure of the server's statistics."""
        self._send(b"stats\r\n")
        text = b""
        while not text.endswith(b"\n\r\n"):
            text += self._receive()
        found = re.search(rb"^%s: (\d+)" % name.encode(), text, re.MULTILINE)
        if not found:
            raise Unexpected(f"no {name} in the statistics")
        return int(found[1])

    def remove(self, first, last):
        """Deletes the jobs with these ids, both included, whatever their state."""
        batches = self._batches(b"delete %d\r\n" % number for number in range(first, last + 1))
        self._exchange(batches, b"DELETED\r", last - first + 1)

    def _put(self, delay_s):
        return b"put 1024 %d %d %d\r\n%s\r\n" % (delay_s, TTR_S, len(self.body), self.body)

    @staticmethod
    def _batches(commands):
        batches, batch = [], []
        for command in commands:
            batch.append(command)
            if len(batch) == BATCH:
                batches.append(b"".join(batch))
                batch = []
        if batch:
            batches.append(b"".join(batch))
        return batches

    def _measured(self, timers, work):
        self.looks = self.at_disk = 0
        (ran, waited), client, start = (
            scheduled_seconds(self.pid),
            own_cpu_seconds(),
            time.monotonic(),
        )
        work()
        elapsed = time.monotonic() - start
        at_disk = self.at_disk / max(self.looks, 1)
        now, client = scheduled_seconds(self.pid), own_cpu_seconds() - client
        ran, waited = now[0] - ran, now[1] - waited
        return {
            "rate_per_s": timers / elapsed,
            "cpu_us_per_timer": {"client": client / timers * 1e6, "server": ran / timers * 1e6},
            "server_fed": (ran + waited) / elapsed + at_disk,
            "lost": 0,
        }

    def _exchange(self, batches, reply, expected):
        """Writes the batches while it reads; each line of the answers has to begin with `reply`."""
        pending, at, offset, seen, lines, tail = batches, 0, 0, 0, 0, b""
        while lines < expected:
            writing = [self.sock] if at < len(pending) else []
            readable, writable, _ = select.select([self.sock], writing, [], 30)
            if not readable and not writable:
                raise Unexpected(f"no answer for 30 s, with {lines} of {expected} replies here")
            if writable:
                offset += self._send_some(memoryview(pending[at])[offset:])
                if offset == len(pending[at]):
                    at, offset = at + 1, 0
            if readable:
                self._pause()
                text = tail + self._receive()
                cut = text.rfind(b"\n") + 1
                lines += text.count(b"\n", 0, cut)
                seen += text.count(reply, 0, cut)
                tail = text[cut:]
                if seen != lines:
                    raise Unexpected(f"an answer is not {reply.decode()!r}: {text[:200]!r}")

    def _reserve_and_delete(self, timers):
        """Keeps WINDOW reserves on the way; each job is deleted as soon as it is seen."""
        out = bytearray(b"reserve\r\n" * min(WINDOW, timers))
        asked, deleted, tail = min(WINDOW, timers), 0, b""
        while deleted < timers:
            readable, writable, _ = select.select([self.sock], [self.sock] if out else [], [], 30)
            if not readable and not writable:
                raise Unexpected(f"no answer for 30 s, with {deleted} of {timers} jobs deleted")
            if writable:
                del out[: self._send_some(out)]
            if readable:
                self._pause()
                text = tail + self._receive()
                # Cut behind a whole line; a body is cut off from its job at worst, and is of no
                # interest.
                cut = text.rfind(b"\n") + 1
                jobs = RESERVED.findall(text, 0, cut)
                deleted += text.count(b"DELETED\r\n", 0, cut)
                if not text.startswith((b"RESERVED", b"DELETED", b"x")):
                    raise Unexpected(f"not a job: {text[:200]!r}")
                tail = text[cut:]
                if jobs:
                    more = min(len(jobs), timers - asked)
                    asked += more
                    out += b"delete " + b"\r\ndelete ".join(jobs) + b"\r\n" + b"reserve\r\n" * more

    def _pause(self):
        """Lets answers gather, then looks at the server, which takes some microseconds."""
        time.sleep(PAUSE_S)
        self.looks += 1
        self.at_disk += waits_for_disk(self.pid)

    def _send(self, data):
        self.sock.setblocking(True)
        try:
            self.sock.sendall(data)
        finally:
            self.sock.setblocking(False)

    def _send_some(self, data):
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def _receive(self):
        select.select([self.sock], [], [], 30)
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise Unexpected("beanstalkd closed the connection")
        return data
