"""What bench/verdict and bench/copy-verdict share: control groups, turns on the machine, an older program beside the new."""
import contextlib, fcntl, os, random, time

from links import NET
from tools import FULLBORE

CPU_GROUP, CPU_GROUP_V2 = "/sys/fs/cgroup/cpu/" + NET, "/sys/fs/cgroup/" + NET
PERIOD_US = 100_000


@contextlib.contextmanager
def group(v1, v2):
    """a control group with these settings; the prefix that puts a command into it"""
    is_v2 = not os.path.isdir(os.path.dirname(CPU_GROUP))
    path = CPU_GROUP_V2 if is_v2 else CPU_GROUP
    os.makedirs(path, exist_ok=True)
    for name, value in (v2 if is_v2 else v1).items():
        open("%s/%s" % (path, name), "w").write(str(value))
    try:
        yield ["sh", "-c", 'echo $$ > %s/cgroup.procs; exec "$@"' % path, "sh"]
    finally:
        for _ in range(50):         # it is busy until the last process has gone
            with contextlib.suppress(OSError):
                os.rmdir(path)
                break
            time.sleep(0.1)


def quota(cores):
    """a control group with this many cores' time"""
    quota_us = int(cores * PERIOD_US)
    return group({"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us}, {"cpu.max": "%d %d" % (quota_us, PERIOD_US)})


@contextlib.contextmanager
def turn():
    """one at a time with others who use this machine"""
    path = os.environ.get("LOCK")
    if not path:
        yield
        return
    with open(path, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def beside_old(run, old):
    """`run(program, label)` with the new program and, if there is one, the old one; whose turn is first is drawn"""
    turns = [("new", FULLBORE, "")] + ([("old", old, "-old")] if old else [])
    results = {name: run(program, label) for name, program, label in random.sample(turns, len(turns))}
    return dict(results["new"], **({"old": results["old"]} if old else {}))


def agreement(rows):
    """how many cases each program named correctly, and which of them only one did"""
    names = {(True, True): "both right", (True, False): "right by the new one alone", (False, True): "right by the older one alone", (False, False): "neither"}
    print("\nof %d cases, right: %d by the new program, %d by the older one" % (len(rows), sum(r["right"] for r in rows), sum(r["old"]["right"] for r in rows)))
    for key, name in names.items():
        some = sorted("%(kind)s %(seed)d" % r["case"] for r in rows if (r["right"], r["old"]["right"]) == key)
        print("  %s: %d%s" % (name, len(some), " (%s)" % ", ".join(some) if some and key[0] != key[1] else ""))
