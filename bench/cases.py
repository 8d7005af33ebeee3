"""The cases, and the figures that the project demands of fullbore in each of them."""
import statistics

RTT_S = 0.020           # of the cases with one near mirror
DISK_BYTES_PER_S = 60_000_000
CONNECTIONS = 4         # at most, per host

NEAR = dict(links=["rtt=20ms,down=1g,up=1g"], mirrors=["nginx,keepalive=1000"])
FAR = dict(links=["rtt=100ms,down=1g,up=1g"], mirrors=["nginx,keepalive=1000"])
FOUR = dict(links=["rtt=%s,down=300m,up=300m" % rtt for rtt in ("10ms", "30ms", "50ms", "80ms")], access="1g",
            mirrors=["nginx,keepalive=1000", "apache,keepalive=100"] * 2)
THREE = dict(FOUR, links=FOUR["links"][:3], mirrors=FOUR["mirrors"][:3], tools=["fullbore", "raw"])
UNEVEN = dict(FOUR, links=["rtt=10ms,down=500m,up=500m", "rtt=30ms,down=300m,up=300m", "rtt=50ms,down=150m,up=150m", "rtt=80ms,down=20m,up=20m"])


def and_bad(mirror, **changes):
    """THREE and a fourth mirror that is no good"""
    return dict(THREE, links=FOUR["links"], mirrors=THREE["mirrors"] + [mirror], tools=["fullbore"], **changes)


# kind: clone (into an empty directory), update (from the older state), no-op (nothing has changed), kill (at half of the
# bytes, then again), dry-run. archive: see archives.py. disk: bytes per second of the destination; without: RAM.
CASES = {
    "one-20": NEAR,
    "one-100": FAR,
    "apache-100": dict(FAR, mirrors=["apache,keepalive=100"]),
    "four": FOUR,
    "uneven": UNEVEN,
    "three": THREE,
    # The fourth mirror drips or falls silent after 3 s; serves the previous InRelease and lacks the new files; lacks all of pool/.
    "drips": and_bad("faulty", change="connection_rate=2000"),
    "dies": and_bad("faulty", change="silent"),
    "stale": and_bad("nginx,keepalive=1000,state=T0", archive="older", state="T1"),
    "empty": and_bad("faulty,status:404=1"),
    "h2-20": dict(NEAR, tls=True, tools=["fullbore", "curl", "raw"]),
    "h2-100": dict(FAR, tls=True, tools=["fullbore", "curl", "raw"]),
    "loopback": dict(links=[]),
    "update": dict(NEAR, kind="update", archive="older", tools=["fullbore", "debmirror", "raw"]),
    "no-op": dict(NEAR, kind="no-op", tools=["fullbore", "debmirror"]),
    "no-op-105k": dict(NEAR, kind="no-op", archive="many", tools=["fullbore"]),
    "slow-disk": dict(NEAR, disk=DISK_BYTES_PER_S, tools=["fullbore", "raw", "dd"]),
    "kill": dict(NEAR, kind="kill", disk=DISK_BYTES_PER_S, tools=["fullbore"]),
    "kill-ram": dict(NEAR, kind="kill", tools=["fullbore"]),
    "all-indexes": dict(links=[], kind="dry-run", archive="indexes", tools=["fullbore"]),
}
EVERY_TOOL = ["fullbore", "aria2", "debmirror", "curl", "raw"]


class Results:
    """runs[case][tool]: the results of the runs, in order"""

    def __init__(self, runs):
        self.runs = runs

    def wall(self, case, tool="fullbore"):
        return self.median(case, "wall_s", tool)

    def median(self, case, key, tool="fullbore"):
        return statistics.median(r[key] for r in self.runs[case][tool])

    def worst(self, case, key, tool="fullbore"):
        return max(r[key] for r in self.runs[case][tool])

    def ratio(self, case, tool):
        """how many times as fast as the tool"""
        return self.wall(case, tool) / self.wall(case)

    def surplus(self, case):
        """bytes received ÷ bytes needed"""
        totals = [r["summary"]["totals"] for r in self.runs[case]["fullbore"]]
        return max(t["received_bytes"] / t["needed_bytes"] for t in totals)

    def slow_disk_limit(self, disk_s):
        """the time that link or disk need for the bytes, whichever is longer"""
        return max(disk_s, self.wall("slow-disk", "raw"))


def clone(case, seconds, share):
    return [(case, "s", "≤", seconds, lambda r: r.wall(case)),
            (case, "raw ÷ fullbore", "≥", share, lambda r: r.ratio(case, "raw")),
            (case, "received ÷ needed", "≤", 1.03, lambda r: r.surplus(case))]


def beside_three(case):
    return [(case, "s ÷ without that mirror", "≤", 1.15, lambda r: r.wall(case) / r.wall("three")),
            (case, "received ÷ needed", "≤", 1.05, lambda r: r.surplus(case))]


# (case, what, comparison, figure asked, how it is taken from the results)
ASKED = [
    *clone("one-20", 12.0, 0.95),
    ("one-20", "debmirror ÷ fullbore", "≥", 5, lambda r: r.ratio("one-20", "debmirror")),
    *clone("one-100", 13.2, 0.86),
    ("one-100", "debmirror ÷ fullbore", "≥", 5, lambda r: r.ratio("one-100", "debmirror")),
    *clone("four", 12.2, 0.93),
    *clone("uneven", 14.0, 0.83),
    *beside_three("drips"), *beside_three("dies"), *beside_three("stale"), *beside_three("empty"),
    ("h2-20", "s", "≤", 12.5, lambda r: r.wall("h2-20")),
    ("h2-20", "share of requests over HTTP/2", "≥", 1, lambda r: r.median("h2-20", "http2_share")),
    ("h2-100", "s", "≤", 14.0, lambda r: r.wall("h2-100")),
    ("h2-100", "share of requests over HTTP/2", "≥", 1, lambda r: r.median("h2-100", "http2_share")),
    ("loopback", "aria2 ÷ fullbore", "≥", 2.2, lambda r: r.ratio("loopback", "aria2")),
    ("loopback", "CPU-s per GB", "≤", 2, lambda r: r.median("loopback", "cpu_s") / (r.median("loopback", "bytes") / 1e9)),
    ("update", "s", "≤", 1.8, lambda r: r.wall("update")),
    ("no-op-105k", "requests", "≤", 2, lambda r: r.worst("no-op-105k", "requests")),
    ("no-op-105k", "s ÷ round trip", "≤", 3, lambda r: r.wall("no-op-105k") / RTT_S),
    ("no-op-105k", "CPU-s", "≤", 0.3, lambda r: r.median("no-op-105k", "cpu_s")),
    ("no-op-105k", "MB of memory, first run", "≤", 64, lambda r: max(x["first"]["rss_mb"] for x in r.runs["no-op-105k"]["fullbore"])),
    ("no-op-105k", "MB of memory", "≤", 64, lambda r: r.worst("no-op-105k", "rss_mb")),
    ("slow-disk", "s ÷ max(raw, dd)", "≤", 1.1, lambda r: r.wall("slow-disk") / r.slow_disk_limit(r.wall("slow-disk", "dd"))),
    ("slow-disk", "s ÷ max(raw, bytes ÷ the disk's rate)", "≤", 1.1,
     lambda r: r.wall("slow-disk") / r.slow_disk_limit(r.median("slow-disk", "bytes") / DISK_BYTES_PER_S)),
    ("kill", "MB fetched again per connection", "≤", 1, lambda r: r.worst("kill", "again_mb")),
    ("kill-ram", "MB fetched again per connection", "≤", 1, lambda r: r.worst("kill-ram", "again_mb")),
    ("all-indexes", "MB of memory", "≤", 500, lambda r: r.worst("all-indexes", "rss_mb")),
]


def judged(runs):
    """(case, what, comparison, asked, measured, met) for each figure that can be taken from these runs"""
    for case, what, comparison, asked, take in ASKED:
        if case not in runs:
            continue
        try:
            value = take(Results(runs))
        except (KeyError, statistics.StatisticsError):
            continue        # a tool or a case that it is compared with was not run
        yield case, what, comparison, asked, value, value <= asked if comparison == "≤" else value >= asked
