"""What the rows of bench/fleet share: links, a store and a queue, workers, figures of a run, tables."""
import json, os, shutil, signal, statistics, subprocess, sys, tempfile, time

from archives import sh
from links import LAB
from stores import KEYS, ROOT, TARGET, directory, gateway
from tools import Tool, machine_busy_s, measure

NET = os.environ.get("BENCH_NET", "fbfleet")
FULLBORE = os.environ.get("FULLBORE") or TARGET + "/release/fullbore"
STORE_PORT, QUEUE_PORT, RAW_PORT = 7480, 4222, 7999
RTT_MS = 2                  # between workers and the rest
MBIT_S, LESS_MBIT_S = 100, 50
BUSY_MOST = 0.85            # above that, the row of 8 workers is judged with links of half the rate
# workers -> demanded rate ÷ rate of one worker
SCALING = {2: 1.90, 4: 3.72, 8: 6.8}
KILLED_MOST, KILLED_WORKERS = 1.25, 4
WAIT_S = 600                # for one command

RAW = """
import socket, sys, threading, time
host, port, seconds = sys.argv[2], int(sys.argv[3]), 3.0
if sys.argv[1] == "serve":
    s = socket.create_server((host, port), backlog=64)
    def one(c):
        try:
            send, data = c.recv(1) == b"d", b"x" * 65536
            while (c.sendall(data) is None) if send else c.recv(1 << 20): pass
        except OSError: pass
    while True:
        threading.Thread(target=one, args=(s.accept()[0],), daemon=True).start()
counts = []
def move(way):
    c = socket.create_connection((host, port)); c.sendall(way.encode()); data, count, end = b"x" * 16384, 0, time.time() + seconds
    while time.time() < end: count += len(c.recv(65536)) if way == "d" else c.send(data)
    counts.append((way, count))
ts = [threading.Thread(target=move, args=(way,)) for way in 2 * sys.argv[4]]
[t.start() for t in ts]; [t.join() for t in ts]
print(min(sum(n for w, n in counts if w == way) for way in sys.argv[4]) / seconds)
"""


def processor_s(pid):
    """CPU seconds of a process and its children that still run"""
    try:
        fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
        children = open("/proc/%d/task/%d/children" % (pid, pid)).read().split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(processor_s(int(child)) for child in children)


def low_priority_s():
    """CPU seconds of programs of this machine with a nice value above 0: they give way to the benchmark"""
    return int(open("/proc/stat").readline().split()[2]) / os.sysconf("SC_CLK_TCK")


class World:
    """Links and a store, in the namespace `store`: c is the client's, s1 that of the first server. `requests_log` is the store's
    log of requests, if a subclass wants one."""

    requests_log = None

    def __init__(self, links, store):
        subprocess.run([LAB + "/wan-down", NET], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sh(LAB + "/wan-up", NET, "--max-seconds", "7200", *links)
        self.processes = {}
        self.dir = tempfile.mkdtemp(prefix="fbfleet", dir="/dev/shm")
        os.chmod(self.dir, 0o755)
        self.files = directory()
        try:
            self.start(store)
        except BaseException:
            self.close()
            raise

    def start(self, store):
        self.processes["store"] = gateway(lambda args: at(store, args), self.files, STORE_PORT, keep_alive=True, requests_log=self.requests_log)
        self.endpoint = "http://%s:%d" % (address(store), STORE_PORT)
        self.env = dict(os.environ, **KEYS, HOME=self.dir, XDG_STATE_HOME=self.dir + "/xdg", TMPDIR=self.dir)
        listens(store, STORE_PORT)

    def queue(self):
        """The address of a queue in c."""
        if "queue" not in self.processes:
            server = sh(ROOT + "/script/nats-server").strip().splitlines()[-1]
            self.processes["queue"] = subprocess.Popen(at("c", [server + "/nats-server", "-js", "-sd", self.dir + "/queue", "-a", address("c"),
                                                       "-p", str(QUEUE_PORT)]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            listens("c", QUEUE_PORT)
        return "nats://%s:%d" % (address("c"), QUEUE_PORT)

    def set(self, link, change):
        sh(LAB + "/wan", "set", NET, link, change)

    def rates(self, workers, mbit_s):
        for number in range(workers):
            self.set("s%d" % (number + 1), "down=%dm,up=%dm" % (mbit_s, mbit_s))

    def clocks(self):
        """CPU seconds of the machine, and of the benchmark's servers and links"""
        link = json.load(open("/run/lab-wan/%s/info" % NET))["pid"]
        found = {"machine": machine_busy_s() - low_priority_s(), "low": low_priority_s(), "links": processor_s(link), "mirrors": 0, "store": 0, "queue": 0}
        for name, process in self.processes.items():
            kind = name.split()[0]
            found[kind] = found.get(kind, 0) + processor_s(process.pid)
        return found

    def remove(self, prefix):
        shutil.rmtree("%s/bucket/%s" % (self.files, prefix), ignore_errors=True)

    def close(self):
        for process in self.processes.values():
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run([LAB + "/wan-down", NET], stdout=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.files, ignore_errors=True)


def address(namespace):
    return "10.77.0.1" if namespace == "c" else "10.77.0.%d" % (10 + int(namespace[1:]))


def at(namespace, args):
    return ["ip", "netns", "exec", "%s-%s" % (NET, namespace)] + args


def listens(namespace, port):
    probe = "import socket; socket.create_connection((%r, %d), 1)" % (address(namespace), port)
    for _ in range(200):
        if not subprocess.run(at(namespace, [sys.executable, "-c", probe]), capture_output=True).returncode:
            return
        time.sleep(0.05)
    raise RuntimeError("nothing listens at port %d of %s" % (port, namespace))


def command(world, namespace, args, log):
    """Runs a command of a namespace to its end; its stdout. Everything goes to the log, too."""
    with open(log, "w") as out:
        done = subprocess.run(at(namespace, args), stdout=subprocess.PIPE, stderr=out, text=True, env=world.env, timeout=WAIT_S)
        out.write(done.stdout)
    if done.returncode:
        raise RuntimeError("%s: exit %d, see %s" % (args[:2], done.returncode, log))
    return done.stdout


def timed_command(world, args, log):
    """`measure` at the client, with the load before; busy is without programs of low priority."""
    load, low = os.getloadavg()[0], low_priority_s()
    used = measure(at("c", args), log, env=world.env)
    low = (low_priority_s() - low) / used["wall_s"] / os.cpu_count()
    return {**used, "busy": used["busy"] - low, "low_busy": low, "load": load}


class Worker(Tool):
    """A running program of a worker."""

    def __init__(self, world, number, args, log):
        self.log = log
        with open(log, "w") as out:
            super().__init__(at("s%d" % (number + 1), args), stdout=out, stderr=subprocess.STDOUT, env=world.env)

    def end(self, wanted):
        usage = self.usage()
        if self.returncode not in wanted:
            raise RuntimeError("worker: exit %d, see %s" % (self.returncode, self.log))
        return usage


class Run:
    """What one run of a fleet takes."""

    def __init__(self, world, size):
        self.world, self.size = world, size
        self.load, self.before = os.getloadavg()[0], world.clocks()
        self.begun, self.cpu_s, self.rss_mb = time.monotonic(), 0, 0

    def used(self, usage):
        self.cpu_s += usage["cpu_s"]
        self.rss_mb = max(self.rss_mb, usage["rss_mb"])

    def programs(self, wall_s):
        """What the compared programs took, workers and planner."""
        return {"cpu_s": self.cpu_s, "rss_mb": self.rss_mb, "programs_busy": self.cpu_s / wall_s / os.cpu_count()}

    def figures(self):
        wall, after = time.monotonic() - self.begun, self.world.clocks()
        share = lambda name: (after[name] - self.before[name]) / wall / os.cpu_count()
        return {"wall_s": wall, "bytes": self.size, "mb_s": self.size / 1e6 / wall, **self.programs(wall), "busy": share("machine"),
                "low_busy": share("low"), **{name + "_busy": share(name) for name in ("links", "mirrors", "store", "queue")}, "load": self.load}


def killed(fleet, run, after_s):
    """Ends the last worker without a warning, some seconds after the run's start."""
    if after_s:
        time.sleep(max(0, run.begun + after_s - time.monotonic()))
        os.kill(fleet[-1].pid, signal.SIGKILL)


def by_queue(begin, world, workers, work, plan, log, kill_after_s=None):
    """The figures of a run by workers that wait at a queue, with a planner in c that does none of their work. `work` and
    `plan` are their command lines, `begin` makes the Run."""
    fleet = [Worker(world, k, work, "%s.work%d" % (log, k)) for k in range(workers)]
    time.sleep(1)       # they wait at the queue, as a fleet does
    run = begin()
    planner = Tool(at("c", plan), stdout=open(log + ".plan", "w"), stderr=subprocess.STDOUT, env=world.env)
    killed(fleet, run, kill_after_s)
    run.used(planner.usage())
    figures = run.figures()
    for worker in fleet:
        if worker.returncode is None:
            os.kill(worker.pid, signal.SIGTERM)
    for number, worker in enumerate(fleet):
        run.used(worker.end([0, -signal.SIGKILL] if kill_after_s and number == workers - 1 else [0]))
    if planner.returncode:
        raise RuntimeError("planner: exit %d, see %s.plan" % (planner.returncode, log))
    return {**figures, **run.programs(figures["wall_s"])}


def raw_mb_s(world, workers, ways="du"):
    """What plain sockets move through the links of these workers: d to them, u from them. Both directions are busy at once, and
    the rate is that of one."""
    server = subprocess.Popen(at("c", [sys.executable, "-c", RAW, "serve", address("c"), str(RAW_PORT)]))
    try:
        listens("c", RAW_PORT)
        clients = [subprocess.Popen(at("s%d" % (k + 1), [sys.executable, "-c", RAW, "move", address("c"), str(RAW_PORT), ways]), stdout=subprocess.PIPE)
                   for k in range(workers)]
        return sum(float(client.communicate(timeout=60)[0]) for client in clients) / 1e6
    finally:
        server.kill()
        server.wait()


def store_mb_s(world, tree, size):
    """What the store takes from one put of this tree beside it, without links."""
    used = measure(at("c", [FULLBORE, "put", "--endpoint", world.endpoint, tree, "s3://bucket/limit/"]), world.dir + "/limit.log", env=world.env)
    world.remove("limit")
    return size / 1e6 / used["wall_s"]


def note(results, a, case, row, tool, figures):
    results.append({"case": case, "row": row, "tool": tool, **figures})
    print("  %-12s %-16s %-24s %7.2f s, machine %3.0f %% busy, and %3.0f %% at low priority; load before %.1f%s" % (
        case, row, tool, figures["wall_s"], 100 * figures["busy"], 100 * figures["low_busy"], figures["load"],
        ", work %.2f s, twice %.1f MB" % (figures["work_s"], figures["twice_mb"]) if "work_s" in figures else ""), flush=True)
    if a.out:
        json.dump(results, open(a.out, "w"), indent=1)
    return figures


def chosen(results, case, row, tool):
    return [r for r in results if (r["case"], r["row"], r["tool"]) == (case, row, tool)]


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def spread(runs, key="wall_s"):
    return "%.2f (%.2f–%.2f)" % (median(runs, key), min(r[key] for r in runs), max(r[key] for r in runs))


def table(results, case, row):
    print("| tool | median s | spread | of it sync s | CPU-s | RSS MB | machine busy, low priority | load |\n" + "|---" * 8 + "|")
    mine = [r for r in results if (r["case"], r["row"]) == (case, row)]
    for tool in sorted({r["tool"] for r in mine}, key=lambda tool: median(chosen(results, case, row, tool), "wall_s")):
        runs = chosen(results, case, row, tool)
        print("| %s | %.2f | %.2f–%.2f | %s | %.1f | %.0f | %.0f %%, %.0f %% | %.1f |" % (
            tool, median(runs, "wall_s"), min(r["wall_s"] for r in runs), max(r["wall_s"] for r in runs),
            "%.2f" % median(runs, "sync_s") if "sync_s" in runs[0] else "–", median(runs, "cpu_s"), max(r["rss_mb"] for r in runs),
            100 * median(runs, "busy"), 100 * median(runs, "low_busy"), median(runs, "load")))


def judge(row, what, comparison, asked, value, busy):
    met = value >= asked if comparison == ">=" else value <= asked
    limit = "; the machine's processor is the limit (%.0f %% busy)" % (100 * busy) if busy > BUSY_MOST and not met else ""
    print("asked: %s: %s: %s %g: %.3g, %s%s" % (row, what, comparison, asked, value, "met" if met else "NOT MET", limit), flush=True)


