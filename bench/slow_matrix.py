"""The slow matrix: with slow mirrors beside a fast one, a run is never slower than with the best subset of the mirrors.

`bench/mirror slow-matrix` and `bench/apt slow-matrix` bring the measured program; cases, rounds and judgement are here. A case
is a size of the run, the rate of each connection of the slow mirrors, their number and position, and the rate of the fast
mirror (`max`: no limit). Every subset of the mirrors that could be the best one runs in every round, with the new build and,
with --old, an older one. The order within a round is random. Slow mirrors are alike, so a subset is a number of them.
"""
import argparse, collections, itertools, json, math, os, random, re, shutil, signal, statistics, subprocess, sys, time

import archives, tools
from archives import HERE, sh
from cases import CONNECTIONS
from links import Memory
from shaped import Shaped

# Files, bytes, largest file.
SIZES = {"100k": (1, "100k", "100k"), "5M": (60, "5M", "1M"), "40M": (150, "40M", "4M"), "1G": (600, "1G", "30M")}
SLOW_MOST = 3
POSITIONS = ("first", "middle", "last")
WALL_SHARE, WALL_MORE_S, WALL_ROUND_TRIPS = 1.10, 0.030, 2
BYTES_SHARE, BYTES_MORE, BYTES_SMALL = 1.05, 1_000_000, 20_000_000
# "Not slower than the old build": medians of nine runs of one program, called old and new, differed by up to 7 % and 28 ms.
OLD_SHARE, OLD_MORE_S = 1.05, 0.010
WORTH_ALONE = 0.25          # slow mirrors without the fast one run if they bring this share of its rate
WORTH_BESIDE = 0.05         # subsets with only some of the slow ones, likewise
TAKEN = 75_000_000          # what fullbore takes of a connection without limit, roughly, on two cores
PEER_ROUNDS = 3             # of other tools: they are there to compare with, not to judge
RAW_BYTES, RAW_PORT = 400_000_000, "7999"

Case = collections.namedtuple("Case", "size rate slow position fast")
Contestant = collections.namedtuple("Contestant", "tool program subset hosts")      # hosts: which mirrors, in order

# Products; together about 30 minutes (quick: 3) without --old. Options replace the part they name in each of them.
KEYS = ("sizes", "rates", "slow", "positions", "fast")
DEFAULT = [
    (["100k", "5M", "40M"], ["20k", "100k", "300k", "1M", "5M"], [1], ["first", "last"], ["max"]),
    (["100k", "5M", "40M"], ["20k", "300k", "1M", "5M"], [3], ["first", "last"], ["max"]),
    (["5M", "40M"], ["300k", "1M"], [2], ["middle"], ["max", "2.5M"]),
    (["40M"], ["20k", "300k", "1M", "5M"], [1], ["first"], ["2.5M"]),
    (["1G"], ["20k", "300k", "5M"], [1], ["last"], ["max"]),
]
QUICK = [(["100k", "40M"], ["20k", "300k", "5M"], [1], ["first"], ["max"]), (["40M"], ["300k"], [3], ["last"], ["max", "2.5M"])]


def number(text):
    m = re.fullmatch(r"([0-9.]+)([kM]?)", text)
    if text != "max" and not m:
        raise argparse.ArgumentTypeError("bad rate " + text)
    return 0 if text == "max" else int(float(m[1]) * {"": 1, "k": 1000, "M": 1_000_000}[m[2]])


def limit(text):
    if not number(text):
        raise argparse.ArgumentTypeError("a slow mirror has a rate, not " + text)


def several(check):
    """an option's comma-separated list, whose items pass `check`"""
    def listed(text):
        for item in text.split(","):
            check(item)
        return text.split(",")
    return listed


def some_of(known):
    def check(item):
        if item not in known:
            raise argparse.ArgumentTypeError("%s is none of %s" % (item, ",".join(known)))
    return several(check)


def label(case):
    return "%s, %d slow of %s %s, fast %s" % (case.size, case.slow, case.rate, case.position, case.fast)


def chosen(options):
    """the cases that the options name, each once"""
    cases = {}
    for group in QUICK if options.quick else DEFAULT:
        parts = [getattr(options, key) or usual for key, usual in zip(KEYS, group)]
        for size, rate, slow, position, fast in itertools.product(*parts):
            cases[Case(size, rate, int(slow), position, fast)] = True
    return list(cases)


def order(case):
    """the mirrors as the program is told them: 0 is the fast one"""
    slow = list(range(1, case.slow + 1))
    before = {"first": case.slow, "middle": case.slow // 2, "last": 0}[case.position]
    return slow[:before] + [0] + slow[before:]


def subsets(case, fast_rate):
    """(name, mirrors) of each subset that could be the best one; "all" is last"""
    share = number(case.rate) * case.slow / min(fast_rate, TAKEN)
    yield "fast", [0]
    if share >= WORTH_ALONE:
        yield "slow", [host for host in order(case) if host]
    if share >= WORTH_BESIDE:
        for count in range(1, case.slow):
            yield "fast+%d" % count, [host for host in order(case) if host <= count]
    yield "all", order(case)


def raw_rate(net):
    """bytes per second that one connection to the fast mirror brings, of as many as fullbore opens: plain sockets"""
    net.shape(0, 0)
    rawcopy = [sys.executable, HERE + "/rawcopy"]
    server = subprocess.Popen(["ip", "netns", "exec", net.servers[0]] + rawcopy + ["serve", net.hosts[0], RAW_PORT])
    time.sleep(0.5)
    try:
        walls = [tools.timed(net, rawcopy + ["fetch", str(RAW_BYTES), RAW_PORT, net.hosts[0]], os.devnull)["wall_s"] for _ in range(3)]
    finally:
        server.terminate()
        server.wait()
    return RAW_BYTES / min(walls) / CONNECTIONS


def rounds(case, net, archive, contestants, runs, run, logs):
    """results[contestant]: of each round, in order; a run that fails counts as endless"""
    memory = Memory()
    results = {c: [] for c in contestants}
    try:
        for turn in range(runs):
            for c in random.sample(contestants, len(contestants)):
                if not c.program and turn >= PEER_ROUNDS:
                    continue
                net.choose(c.hosts, case.size + "/T0")
                name = "%s-%s" % (c.tool, c.subset)
                place = "%s/%s" % (memory.path, name)
                os.makedirs(place, exist_ok=True)
                before = net.payload()
                try:
                    result = run(c, net, archive, place, "%s/%s.%d" % (logs, name, turn))
                except (RuntimeError, subprocess.CalledProcessError) as error:
                    print("  %s failed: %s" % (name, error), flush=True)
                    result = {"wall_s": math.inf, "error": str(error)}
                results[c].append({"payload": net.payload() - before, **result})
    finally:
        memory.close()
    return results


def median(results, key="wall_s"):
    return statistics.median(r[key] for r in results)


def judge(case, results, fast_rate, rtt_s, archive):
    """What the case showed, as one flat row."""
    wall = {"%s %s" % (c.tool, c.subset): median(r) for c, r in results.items()}
    ours = {name: w for name, w in wall.items() if name.startswith(("new ", "old "))}
    best = min(ours, key=ours.get)
    every = next(r for c, r in results.items() if (c.tool, c.subset) == ("new", "all"))
    alone = next(r for c, r in results.items() if (c.tool, c.subset) == ("new", "fast"))
    payload, needed = median(every, "payload"), median(alone, "payload")
    allowed = WALL_SHARE * ours[best] + WALL_ROUND_TRIPS * rtt_s + WALL_MORE_S
    allowed_bytes = needed + BYTES_MORE if needed < BYTES_SMALL else BYTES_SHARE * needed
    slower = [name[4:] for name in ours if name.startswith("new ") and "old" + name[3:] in ours
              and ours[name] > OLD_SHARE * ours["old" + name[3:]] + OLD_MORE_S]
    walls = sorted(r["wall_s"] for r in every)
    carried = CONNECTIONS * (fast_rate + case.slow * number(case.rate))
    return {"case": label(case), "limit_s": archive.bytes / carried, "best": best, "best_s": ours[best], "all_s": wall["new all"],
            "spread_s": [walls[0], walls[-1]], "allowed_s": allowed, "wall_met": wall["new all"] <= allowed,
            "bytes_ratio": payload / needed, "bytes_more": payload - needed, "bytes_met": payload <= allowed_bytes,
            "slower_than_old": slower, "load": os.getloadavg()[0],
            "median_s": wall, "cpu_s": median([r for r in every if "cpu_s" in r] or [{"cpu_s": math.inf}], "cpu_s")}


def met(row):
    return row["wall_met"] and row["bytes_met"] and not row["slower_than_old"]


def show(rows):
    peers = list(dict.fromkeys(name for row in rows for name in row["median_s"] if not name.startswith(("new ", "old "))))
    old = any("old all" in row["median_s"] for row in rows)
    heads = ["case", "links' limit s", "best subset", "its median s", "all: median s", "spread", "allowed", "wall", "bytes", ""]
    heads += (["old, all", "slower than old"] if old else []) + peers
    print("\n| %s |\n|%s" % (" | ".join(heads), "---|" * len(heads)))
    verdict = lambda yes: "met" if yes else "**missed**"
    for row in rows:
        cells = [row["case"], "%.3f" % row["limit_s"], row["best"], "%.3f" % row["best_s"], "%.3f" % row["all_s"], "%.3f–%.3f" % tuple(row["spread_s"]),
                 "%.3f" % row["allowed_s"], verdict(row["wall_met"]), "%.3f" % row["bytes_ratio"], verdict(row["bytes_met"])]
        figure = lambda name: "%.3f" % row["median_s"][name] if name in row["median_s"] else "–"
        cells += ([figure("old all"), ", ".join(row["slower_than_old"]) or "none"] if old else []) + [figure(name) for name in peers]
        print("| %s |" % " | ".join(cells))
    print("\n%d of %d cases met; load at the end %.1f on %d processors" % (sum(map(met, rows)), len(rows), os.getloadavg()[0], os.cpu_count()))
    if any(row["load"] > 2 * os.cpu_count() for row in rows):
        print("The machine was busy with something else: look at the spread before you believe a figure.")


def keep(directory, row, results, logs, net):
    """the raw results of a case and all logs, those of the mirrors (0 is the fast one) included"""
    place = directory + "/" + re.sub(r"[^\w.]+", "-", row["case"])
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(logs, place)
    for i, log in enumerate(net.logs):
        shutil.copy(log, "%s/mirror%d.access" % (place, i))
    raw = {"%s %s" % (c.tool, c.subset): r for c, r in results.items()}
    json.dump({"row": row, "runs": raw}, open(place + "/runs.json", "w"), indent=1)


def main(arguments, run, peers=lambda *_: [], usage=None):
    """`run(contestant, net, archive, place, log)` measures one program once; `place` is its own for all rounds of a case.
    `peers(case, mirrors, rate, archive)` are contestants of other tools, without a program of ours; `rate(mirror)` is that
    of one connection."""
    p = argparse.ArgumentParser(usage=usage, description=__doc__)
    p.add_argument("--sizes", type=some_of(SIZES), help="of " + ",".join(SIZES))
    p.add_argument("--rates", type=several(limit), help="of each connection of a slow mirror, such as 20k,2.5M")
    p.add_argument("--slow", type=some_of([str(n + 1) for n in range(SLOW_MOST)]), help="number of slow mirrors, 1 to %d" % SLOW_MOST)
    p.add_argument("--positions", type=some_of(POSITIONS), help="of the slow ones: " + ",".join(POSITIONS))
    p.add_argument("--fast", type=several(number), help="rate of each connection of the fast mirror; max: no limit")
    p.add_argument("--rtt", type=float, default=0, help="milliseconds; the links are the lab's then")
    p.add_argument("--runs", type=int, help="rounds per case; 9 by default, 3 with --quick")
    p.add_argument("--quick", action="store_true", help="about 3 minutes")
    p.add_argument("--old", metavar="PROGRAM", help="an older build to compare with")
    p.add_argument("--keep", metavar="DIR", help="logs and raw results of the cases that miss")
    p.add_argument("--list", action="store_true", help="print the cases and end")
    p.add_argument("--work", default="/var/tmp/fullbore-bench")
    p.add_argument("--out", metavar="FILE.json", help="a summary of each case")
    options = p.parse_args(arguments)
    cases, runs = chosen(options), options.runs or (3 if options.quick else 9)
    if options.list:
        return print("\n".join(map(label, cases)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # the links are taken down on the way out
    top, logs = options.work + "/slow", options.work + "/log/slow"
    os.makedirs(top, exist_ok=True)
    trees = {size: make(top, size) for size in dict.fromkeys(case.size for case in cases)}
    net = Shaped(top, 1 + SLOW_MOST, options.rtt)
    rows = []
    try:
        most = raw_rate(net)
        print("%d cases, %d rounds; plain sockets: %.0f MB/s from the fast mirror" % (len(cases), runs, CONNECTIONS * most / 1e6), flush=True)
        for case in cases:
            fast_rate = number(case.fast) or most
            net.shape(0, number(case.fast))
            for slow in range(1, case.slow + 1):
                net.shape(slow, number(case.rate))
            programs = [("new", tools.FULLBORE)] + ([("old", options.old)] if options.old else [])
            contestants = [Contestant(*p, name, tuple(hosts)) for name, hosts in subsets(case, fast_rate) for p in programs]
            contestants += peers(case, order(case), lambda host: number(case.rate) if host else fast_rate, trees[case.size])
            shutil.rmtree(logs, ignore_errors=True)
            os.makedirs(logs)
            net.forget()
            results = rounds(case, net, trees[case.size], contestants, runs, run, logs)
            row = judge(case, results, fast_rate, options.rtt / 1000, trees[case.size])
            rows.append(row)
            print("%-44s best %-10s %7.3f s  all %7.3f s (%.3f–%.3f)  allowed %7.3f s  bytes %.3f  %s" % (
                row["case"], row["best"], row["best_s"], row["all_s"], *row["spread_s"], row["allowed_s"], row["bytes_ratio"],
                "met" if met(row) else "MISSED"), flush=True)
            if options.keep and not met(row):
                keep(options.keep, row, results, logs, net)
            if options.out:
                with open(options.out, "w") as f:
                    f.write('{"cores": %d, "kernel": "%s", "rounds": %d, "rtt_ms": %g, "cases": [\n' % (os.cpu_count(), os.uname().release, runs, options.rtt))
                    f.write(",\n".join(map(json.dumps, rows)) + "\n]}\n")
    finally:
        net.down()
    show(rows)


def make(top, size):
    """The archive of a run of this size; its packages need nothing else, so that apt can fetch them all."""
    files, total, largest = SIZES[size]
    directory = top + "/" + size
    archives.once(directory, lambda d: archives.fill(d, "--kind", "binary", "--states", "1", "--no-contents", "--no-pdiffs", "--installable",
                                          "--files", str(files), "--bytes", total, "--max-file", largest, "--seed", "25"))
    return archives.Archive(directory, arch="amd64,all")
