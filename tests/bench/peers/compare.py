"""Runs mtimer and its peers in turn at the same work, and prints how they compare. See `run`.

Invariant: whatever stands in one line of the table ran in the same run, in turn, on the same disk,
and says how durable the two sides are to each other.
Not here: installing (run), drivers (beanstalkd.py, bullmq/drive.mjs, asynq/main.go).
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback

import beanstalkd
import servers

PAYLOAD_BYTES = 64
# The works at a steady rate, timers a second, the same for everybody: what is compared is how late
# they are and what they use, so nobody may be near its limit.
STEADY = ("lateness", "mix")
STEADY_RATE = 500
# How long before it is due a timer of these is stored: longer than mtimer keeps in memory
# (--preload, 5 s), so that all have to get it back from Redis.
STEADY_AHEAD_S = 7
# A round may take this long at most; far more than the slowest peer needs for a million timers.
ROUND_S = 1200
# A measurement shorter than this decides nothing: what the machine did beside it weighs more than
# the work.
SHORTEST_S = 0.5
# Cores that other programs may use in a turn. Above that no goal is decided: a peer with one thread
# loses more to them than mtimer with its several, which would flatter mtimer.
OTHERS_CORES = 0.2
# The share of the time in which the peer's server has to have had work. Below that no goal is
# decided: its driver or the disk held it up, and its figure is too low.
FED = 0.95
# mtimer's timers of a round of fire are due within this long, so that it cannot fire them faster
# than that.
FIRE_WINDOW_S = 1

Line = collections.namedtuple("Line", "work ours peer durability goal")
# `ours` is a store of mtimer, `peer` a configuration of a peer, both keys of Runner's methods
# below.
LINES = [
    Line("schedule", "embedded-sync", "beanstalkd-log", "stronger", 1.2),
    Line("schedule", "embedded-fast", "beanstalkd-log", "equal", None),
    Line("schedule", "redis", "beanstalkd-memory", "equal", 1.2),
    Line("schedule", "redis", "beanstalkd-log", "weaker", None),
    Line("schedule", "redis", "bullmq", "equal", 7),
    Line("schedule", "redis", "asynq", "equal", None),
    Line("fire", "embedded-sync", "beanstalkd-log", "stronger", 1.2),
    Line("fire", "embedded-fast", "beanstalkd-log", "equal", None),
    Line("fire", "redis", "beanstalkd-memory", "equal", 1.2),
    Line("fire", "redis", "beanstalkd-log", "weaker", None),
    Line("fire", "redis", "bullmq", "equal", 5),
    Line("fire", "redis", "asynq-10ms", "equal", None),
    Line("schedule-ids", "redis", "bullmq", "equal", None),
    Line("schedule-ids", "redis", "asynq", "equal", None),
    Line("cancel-ids", "redis", "bullmq", "equal", None),
    Line("cancel-ids", "redis", "asynq", "equal", None),
    Line("lateness", "redis", "bullmq", "equal", None),
    Line("lateness", "redis", "asynq-1ms", "equal", None),
    Line("lateness", "redis", "asynq-5s", "equal", None),
    Line("mix", "redis", "bullmq", "equal", None),
    Line("mix", "redis", "asynq-1ms", "equal", None),
]
WORKS = list(dict.fromkeys(line.work for line in LINES))
# What mtimer measures for each work.
BENCH = {
    "schedule": ["schedule"],
    "fire": ["fire"],
    "schedule-ids": ["schedule"],
    "cancel-ids": ["cancel", "--over", "1h"],
    "lateness": ["lateness"],
    "mix": ["lateness"],
}
# Percentages of a work's timers, as mtimer's flags call them; it and the peers choose the same
# timers. Where a timer has a key, a job of a peer has an id of the application's; where it is at
# most once, the job has one attempt.
NO_MIX = {"keyed": 0, "at_most_once": 0, "fail": 0}
MIXES = {
    "schedule-ids": {**NO_MIX, "keyed": 100},
    "cancel-ids": {**NO_MIX, "keyed": 100},
    "mix": {"keyed": 50, "at_most_once": 20, "fail": 2},
}
# When a job that failed is tried again: what `mtimer bench --fail` asks for.
RETRY_MS = 500
# How often a worker of asynq looks for tasks, in ms. 0 leaves its defaults: every 5 s for tasks
# that are due, every second for tasks to run. It has no lower limit; a look takes part of a
# millisecond. In fire all are due at once, and further looks only take time.
ASYNQ_INTERVAL_MS = {"asynq-1ms": 1, "asynq-10ms": 10, "asynq-5s": 0}
# The figures of a line, one row each, with the name of the row. Of all but rates less is better.
RATES = {"rate_per_s": "(1/s)"}
STEADY_FIGURES = {
    "lateness_ms.p50": "p50 (ms)",
    "lateness_ms.p99": "p99 (ms)",
    "cpu_us_per_timer.programs": "programs (µs)",
    "cpu_us_per_timer.redis": "Redis (µs)",
}
NOTES = """\
Ratio: mtimer's median over the peer's (lateness and mix: the peer's over mtimer's), lowest and
highest of the rounds behind.
Programs, Redis: processor time for each timer, from adding it until it is settled; programs are
mtimer's client and broker, or the process that adds and handles a peer's jobs.
Durability, ours against theirs: embedded-sync answers after fsync, embedded-fast and beanstalkd's
log sync every 50 ms; redis (no snapshots, no AOF), BullMQ and asynq on it and beanstalkd without
log keep memory only. "weaker": memory of another process against a log on disk; it proves nothing,
and stands here because people choose between them.
asynq knows whole seconds only; its tasks are due, and late, from the next one.
"window": mtimer fired all while they fell due (one second), so its rate is the load's; "too short":
under half a second; "busy machine": other programs used over 0.2 cores in a turn; "peer not fed":
in some turn beanstalkd had work for less than 95 % of the time, so its figure is too low. None of
these says anything about a goal, whichever way the ratio points: give more --timers, or a quiet
machine."""


class Runner:
    """Runs one side of one work once, on a server of its own."""

    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options.folder)

    def run(self, work, side):
        if side.startswith("beanstalkd"):
            return self.beanstalkd(work, side == "beanstalkd-log")
        if side == "bullmq":
            return self.driver(work, "bullmq", ["node", "drive.mjs"])
        if side.startswith("asynq"):
            interval_ms = ASYNQ_INTERVAL_MS.get(side, 0)
            return self.driver(work, "asynq", ["./drive"], interval_ms=interval_ms)
        return self.mtimer(work, side)

    def size(self):
        return self.options.timers, max(1000, self.options.timers // 5)

    def beanstalkd(self, work, log_on):
        timers, warmup = self.size()
        with servers.beanstalkd(self.folder, log_on) as (port, pid):
            client = beanstalkd.Client(port, pid, PAYLOAD_BYTES)
            try:
                rate = client.schedule(warmup)["rate_per_s"]
                client.remove(1, warmup)
                if work == "schedule":
                    result = client.schedule(timers)
                    result["lost"] = timers - client.count("current-jobs-delayed")
                    return result
                client.fire(warmup, 3 + 2 * warmup / rate)
                return client.fire(timers, 3 + 2 * timers / rate)
            finally:
                client.close()

    def driver(self, work, peer, command, **more):
        """Runs a peer's driver, a program that is told by one JSON object what to do."""
        timers, warmup = self.size()
        with servers.redis(self.folder) as (port, _):
            ask = {
                "work": work,
                "port": port,
                "payload": PAYLOAD_BYTES,
                "timers": timers,
                "warmup": warmup,
                "rate": STEADY_RATE,
                "over_s": self.options.over,
                "ahead_s": STEADY_AHEAD_S,
                "mix": MIXES.get(work, NO_MIX),
                "retry_ms": RETRY_MS,
                **more,
            }
            return self.program([*command, json.dumps(ask)], cwd=self.folder / peer)

    def mtimer(self, work, store):
        arguments = [
            self.options.mtimer,
            "bench",
            *BENCH[work],
            "--json",
            "--rounds",
            1,
            "--warmup",
            1,
        ]
        arguments += ["--payload", PAYLOAD_BYTES]
        for name, percent in MIXES.get(work, {}).items():
            if percent:
                arguments += ["--" + name.replace("_", "-"), percent]
        if work in STEADY:
            arguments += [
                "--rate",
                STEADY_RATE,
                "--over",
                f"{self.options.over}s",
                "--ahead",
                f"{STEADY_AHEAD_S}s",
            ]
        else:
            arguments += ["--timers", self.options.timers]
        if store == "redis":
            with servers.redis(self.folder) as (port, _):
                return self.as_asked(
                    work, store, arguments + ["--redis", f"redis://127.0.0.1:{port}"]
                )
        data = self.folder / "mtimer"
        data.mkdir()
        try:
            return self.as_asked(work, store, arguments + ["--durability", store, "--dir", data])
        finally:
            shutil.rmtree(data, ignore_errors=True)

    def as_asked(self, work, store, arguments):
        """A result of mtimer, if it says that it measured what its line in the table claims."""
        result = self.program(arguments)
        asked = {
            "bench": BENCH[work][0],
            "durability": store,
            "payload_bytes": PAYLOAD_BYTES,
            "mix_percent": MIXES.get(work, NO_MIX),
        }
        if work not in STEADY:
            asked["timers"] = self.options.timers
        for key, value in asked.items():
            if result.get(key, value) != value:
                raise servers.Failed(
                    f"mtimer was asked for {key} {value} and measured {result[key]}"
                )
        return result

    def program(self, arguments, cwd=None):
        """Runs a program that prints one JSON object as its last line."""
        with subprocess.Popen(
            servers.command(arguments),
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                out, err = child.communicate(timeout=ROUND_S)
            except BaseException:
                child.kill()
                raise
        shown = " ".join(map(str, arguments))
        if child.returncode != 0:
            raise servers.Failed(
                f"`{shown}` ended with {child.returncode}: {(err or out)[-800:].strip()}"
            )
        try:
            return json.loads(out.strip().splitlines()[-1])
        except (IndexError, ValueError) as error:
            raise servers.Failed(f"`{shown}` printed no JSON: {out[-300:]!r}") from error


def measure(runner, lines, rounds):
    """Every side of every work, in turn, round by round: {(work, side): [result, ...]}"""
    turns = list(
        dict.fromkeys((line.work, side) for line in lines for side in (line.peer, line.ours))
    )
    results = collections.defaultdict(list)
    for number in range(1, rounds + 1):
        for work, side in turns:
            others, began = servers.others_cpu_seconds(), time.monotonic()
            try:
                result = runner.run(work, side)
            except Exception as error:
                raise servers.Failed(f"round {number}: {work} on {side}: {told(error)}") from error
            others = (servers.others_cpu_seconds() - others) / (time.monotonic() - began)
            wrong = {key: result[key] for key in ("lost", "early", "duplicates") if result.get(key)}
            if wrong:
                raise servers.Failed(f"round {number}: {work} on {side}: {wrong}")
            result["others_cores"] = round(max(0.0, others), 2)
            results[work, side].append(result)
            print(
                f"round {number}: {work} {side}: {brief(work, result)}, others {others:.2f} cores",
                file=sys.stderr,
            )
    return results


def told(error):
    """What went wrong; if nobody has thought of that, where, too."""
    if isinstance(
        error, (servers.Failed, beanstalkd.Unexpected, OSError, subprocess.TimeoutExpired)
    ):
        return str(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()


def brief(work, result):
    if work in STEADY:
        return ", ".join(
            f"{name} {figure(result, measure):.2f}" for measure, name in STEADY_FIGURES.items()
        )
    fed = f", server fed {result['server_fed']:.0%} of the time" if "server_fed" in result else ""
    return f"{result['rate_per_s']:,.0f} a second{fed}"


def figure(result, measure):
    """One number of a result."""
    group, _, name = measure.partition(".")
    if name == "programs":
        # mtimer's broker is a process of its own.
        return result[group]["client"] + result[group].get("broker", 0)
    return result[group][name] if name else result[group]


def rows(lines, results, timers):
    """The table: one row for each figure of a line."""
    for line in lines:
        for measure in STEADY_FIGURES if line.work in STEADY else RATES:
            ours, theirs = (
                [figure(one, measure) for one in results[line.work, side]]
                for side in (line.ours, line.peer)
            )
            ratio = statistics.median(ours) / statistics.median(theirs)
            each = [our / their for our, their in zip(ours, theirs)]
            if measure not in RATES:
                ratio, each = 1 / ratio, [1 / one for one in each]
            busiest = max(
                one["others_cores"]
                for side in (line.ours, line.peer)
                for one in results[line.work, side]
            )
            fed = min(
                (one["server_fed"] for one in results[line.work, line.peer] if "server_fed" in one),
                default=None,
            )
            doubt = disturbed(busiest, fed) or (
                undecided(line.work, timers, ours, theirs) if measure in RATES else None
            )
            yield {
                "work": line.work,
                "measure": measure,
                "mtimer_store": line.ours,
                "peer": line.peer,
                "durability": line.durability,
                "mtimer": {"median": statistics.median(ours), "spread": [min(ours), max(ours)]},
                "peer_figure": {
                    "median": statistics.median(theirs),
                    "spread": [min(theirs), max(theirs)],
                },
                "ratio": ratio,
                "ratio_spread": [min(each), max(each)],
                "goal": line.goal,
                "others_cores": busiest,
                "peer_fed": fed,
                "undecided": doubt,
                "met": None if line.goal is None or doubt else ratio >= line.goal,
            }


def disturbed(busiest, fed):
    """What kept one side from showing what it can: other programs, a driver that is too slow."""
    if busiest > OTHERS_CORES:
        return "busy machine"
    return "peer not fed" if fed is not None and fed < FED else None


def undecided(work, timers, ours, theirs):
    """Why these rates say nothing about a goal, if so."""
    if work == "fire" and max(ours) > 0.9 * timers / FIRE_WINDOW_S:
        return "window"
    return "too short" if timers / max(ours + theirs) < SHORTEST_S else None


def table(report):
    text = [
        [
            "work",
            "mtimer on",
            "against",
            "durability",
            "mtimer",
            "peer",
            "ratio",
            "spread",
            "goal",
            "",
        ]
    ]
    for row in report["rows"]:
        work = f"{row['work']} {({**RATES, **STEADY_FIGURES})[row['measure']]}"
        digits = 0 if row["measure"] in RATES else 2
        figures = [f"{row[key]['median']:,.{digits}f}" for key in ("mtimer", "peer_figure")]
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        met = row["undecided"] or {None: "", True: "met", False: "missed"}[row["met"]]
        spread = "{:.2f}..{:.2f}".format(*row["ratio_spread"])
        text.append(
            [
                work,
                row["mtimer_store"],
                row["peer"],
                row["durability"],
                *figures,
                f"{row['ratio']:.2f}",
                spread,
                goal,
                met,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*text)]
    right = {4, 5, 6, 7, 8}
    lines = [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        )
        for row in text
    ]
    head = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = report["machine"]
    notes = [f"left out: {name}: {why}" for name, why in report["left_out"].items()]
    return "\n".join(
        [
            f"{machine['cores']} cores, {machine['cpu']}, {machine['kernel']},"
            f" files on {machine['files_on']}",
            head,
            f"{report['timers']:,} timers, {PAYLOAD_BYTES} bytes each, {report['rounds']} rounds;"
            " load average "
            f"{report['load_average'][0]:.2f} before, {report['load_average'][1]:.2f} after",
            "",
            *(line.rstrip() for line in lines),
            "",
            *notes,
            NOTES,
        ]
    )


def machine(folder):
    cpu = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    files = first_line(["stat", "--file-system", "--format=%T", str(folder)])
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "kernel": platform.release(),
        "files_on": files,
    }


def first_line(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return next(iter(done.stdout.splitlines()), "unknown")


def versions(options):
    found = {
        "mtimer": first_line([options.mtimer, "--version"]).split()[-1],
        "commit": options.commit,
    }
    if "beanstalkd" not in options.left_out:
        found["beanstalkd"] = first_line(["beanstalkd", "-v"]).split()[-1]
    if "redis" not in options.left_out:
        found["redis"] = first_line(["redis-server", "--version"]).split("v=")[-1].split()[0]
    if "bullmq" not in options.left_out:
        package = pathlib.Path(options.folder) / "bullmq/node_modules/bullmq/package.json"
        found["bullmq"] = json.loads(package.read_text())["version"]
        found["node"] = first_line(["node", "--version"])
    if "asynq" not in options.left_out:
        required = (pathlib.Path(options.folder) / "asynq/go.mod").read_text()
        found["asynq"] = re.search(r"hibiken/asynq v(\S+)", required)[1]
        found["go"] = first_line(["go", "version"]).split()[2][2:]
    return found


def at_least_one(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def parse():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--mtimer", required=True, type=os.path.abspath)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--timers", type=at_least_one, default=500_000)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--over", type=at_least_one, default=20)
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--without", action="append", default=[], metavar="NAME=WHY")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(WORKS)
    if unknown:
        parser.error(f"no work is called {sorted(unknown)[0]!r}: there are {', '.join(WORKS)}")
    options.left_out = dict(entry.split("=", 1) for entry in options.without)
    if "redis" in options.left_out:
        for peer in ("bullmq", "asynq"):
            options.left_out.setdefault(peer, "it needs redis-server")
    return options


def possible(options):
    for line in LINES:
        sides = {line.ours, line.peer.split("-", 1)[0]}
        if line.work in options.only and not sides & set(options.left_out):
            yield line


def stop(number, _):
    sys.exit(128 + number)


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    options = parse()
    before = os.getloadavg()[0]
    lines = list(possible(options))
    try:
        results = measure(Runner(options), lines, options.rounds)
    except servers.Failed as error:
        sys.exit(f"run: {error}")
    report = {
        "machine": machine(options.folder),
        "versions": versions(options),
        "timers": options.timers,
        "payload_bytes": PAYLOAD_BYTES,
        "rounds": options.rounds,
        "load_average": [before, os.getloadavg()[0]],
        "left_out": options.left_out,
        "rows": list(rows(lines, results, options.timers)),
        "each": [
            {"work": work, "side": side, "results": each} for (work, side), each in results.items()
        ],
    }
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
