"""The rows of bench/fleet about `put`: a tree that all workers see goes into a store, by fullbore and by its peers.

Four workers, each behind its own link; planner, queue and store are in the client's namespace, without a link.

  fullbore × 4      `put --queue --no-local`, with four `work` that wait at the queue; × 1: with one
  rclone × 4        the list of files in four equal parts, one for each worker
  parallel + s5cmd  the list in PARTS parts, of which GNU parallel gives each worker JOBS at once, and repeats failed ones
                    elsewhere. Its "ssh" only enters the namespace: no encryption, no login
  juicefs sync      manager on the first worker, as it copies too, and would have no link in the client's namespace; the
                    others are its --worker, over ssh. Its binary is on them already

Peers get their lists before the clock starts, and do not compare the store before they put; fullbore and juicefs do.
"""
import contextlib, hashlib, os, random, shutil, signal, statistics, subprocess, threading, time

from archives import differences, manifest, once, sh, verify
from fleets import (FULLBORE, KILLED_MOST, KILLED_WORKERS, MBIT_S, NET, RTT_MS, SCALING, WAIT_S, Run, Worker, World, address, at, by_queue, chosen, judge,
                    listens, median, note, raw_mb_s, spread, store_mb_s)
from stores import CACHE, KEYS, RCLONE_FRESH, get_tools, rclone, s5cmd
from tools import Tool

ROWS = ("put", "put-killed", "put-one")
WORKERS = KILLED_WORKERS
HOSTS = ["s%d" % (k + 1) for k in range(WORKERS)]
FULLBORES, FULLBORE_ALONE = "fullbore × %d" % WORKERS, "fullbore × 1"
FILES_PER_DIRECTORY = 100
CONCURRENCY = 64            # files of each worker at once, as RCLONE_FRESH has it
JOBS = 2                    # of each worker: the start of one falls into the work of the other
PARTS = 2 * JOBS * WORKERS  # few enough that starts take no time, many enough that a dead worker's part is small
TRIES = 4                   # of each part
SSH_PORT, MANAGER_PORT = 22, 6500
PEAK_STEP_S = 0.5
GONE_S = 10                 # between the end of a manager and that of its last worker


class Tree:
    """Files of random bytes of one size, made once, and their hashes."""

    def __init__(self, work, files, size):
        place = "%s/put-%d-%d" % (work, files, size)
        self.dir, self.bytes = place + "/tree", files * size
        once(place, lambda _: self.make(place, files, size))
        self.rows = manifest(place + "/manifest.tsv")
        verify(self.rows, self.dir)     # reads it into the page cache, too

    def make(self, place, files, size):
        os.makedirs(self.dir)
        with open(place + "/manifest.tsv", "w") as rows:
            for number in range(files):
                path = "d%d/f%d" % (number // FILES_PER_DIRECTORY, number)
                os.makedirs(os.path.dirname("%s/%s" % (self.dir, path)), exist_ok=True)
                digest, left = hashlib.sha256(), size
                with open("%s/%s" % (self.dir, path), "wb") as f:
                    while left:
                        data = os.urandom(min(left, 1 << 20))
                        digest.update(data)
                        left -= f.write(data)
                rows.write("%s\t%d\t%s\n" % (digest.hexdigest(), size, path))
        os.sync()

    def parts(self, count):
        """The paths in parts of equal size."""
        paths = [path for _, _, path in self.rows]
        return [paths[len(paths) * k // count:len(paths) * (k + 1) // count] for k in range(count)]


class Puts(World):
    """Workers behind links, and a store that counts requests."""

    def __init__(self):
        super().__init__(["%d*rtt=%dms,down=%dm,up=%dm" % (WORKERS, RTT_MS, MBIT_S, MBIT_S)], "c")

    def start(self, store):
        self.requests_log = self.dir + "/requests"
        super().start(store)

    def requests(self):
        """requests that the store has answered"""
        with open(self.requests_log) as log:
            return sum(1 for _ in log)

    def others(self, hosts):
        """Processes of these namespaces, without the benchmark's servers."""
        wanted, servers = {os.stat("/run/netns/%s-%s" % (NET, host)).st_ino for host in hosts}, {process.pid for process in self.processes.values()}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):
                if pid not in servers and os.stat("/proc/%d/ns/net" % pid).st_ino in wanted:
                    yield pid

    def kill(self, hosts):
        for pid in list(self.others(hosts)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def empty(self, hosts):
        """Waits until nothing runs there, and ends what still runs then."""
        end = time.monotonic() + GONE_S
        while any(self.others(hosts)):
            if time.monotonic() > end:
                self.kill(hosts)
            time.sleep(0.01)

    def logins(self):
        """An sshd for each worker, and the directory of an `ssh` with the key for them."""
        own = self.dir + "/ssh"
        if not os.path.exists(own):
            os.makedirs(own + "/bin")
            os.makedirs("/run/sshd", exist_ok=True)
            for key in ("host", "user"):
                sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "%s/%s" % (own, key))
            with open(own + "/bin/ssh", "w") as script:
                script.write("#!/bin/sh\nexec /usr/bin/ssh -F none -p %d -i %s/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                             "-o LogLevel=ERROR \"$@\"\n" % (SSH_PORT, own))
            os.chmod(own + "/bin/ssh", 0o755)
            for host in HOSTS:
                with open("%s/%s" % (own, host), "w") as f:
                    # An empty home: no login shell's settings add to the time.
                    f.write("ListenAddress %s:%d\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
                            "PermitRootLogin prohibit-password\nSetEnv HOME=%s\n" % (address(host), SSH_PORT, own, own, own))
                self.processes["sshd " + host] = subprocess.Popen(at(host, ["/usr/sbin/sshd", "-D", "-f", "%s/%s" % (own, host)]),
                                                                  stderr=subprocess.DEVNULL)
                listens(host, SSH_PORT)
        return own + "/bin"

    def ended_logins_s(self):
        """CPU seconds of all that sshds have run so far"""
        total = 0
        for name, process in self.processes.items():
            if name.startswith("sshd"):
                fields = open("/proc/%d/stat" % process.pid).read().rsplit(")", 1)[1].split()
                total += int(fields[13]) + int(fields[14])
        return total / os.sysconf("SC_CLK_TCK")


class PutRun(Run):
    """What one run of a put takes, with its requests to the store."""

    def __init__(self, world, tree):
        self.requests = world.requests()
        super().__init__(world, tree.bytes)

    def figures(self):
        figures = super().figures()
        return {**figures, "requests": self.world.requests() - self.requests}


class Peak(threading.Thread):
    """The peak memory of the largest process in some namespaces."""

    def __init__(self, world, hosts):
        super().__init__(daemon=True)
        self.world, self.hosts, self.ended, self.mb = world, hosts, threading.Event(), 0

    def run(self):
        while not self.ended.wait(PEAK_STEP_S):
            for pid in self.world.others(self.hosts):
                with contextlib.suppress(OSError):
                    text = open("/proc/%d/status" % pid).read()
                    self.mb = max([self.mb] + [int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM:")])

    def end(self):
        self.ended.set()
        self.join()
        return self.mb


def fullbores(world, tree, prefix, log, kill_after_s=None, workers=WORKERS):
    """Workers that wait at a queue, and a planner that puts nothing itself."""
    to = "s3://bucket/%s/" % prefix
    work = [FULLBORE, "work", world.queue(), "--only", to, "--root", "%s=%s" % (tree.dir, tree.dir), "--endpoint", world.endpoint]
    plan = [FULLBORE, "put", "--endpoint", world.endpoint, "--queue", world.queue(), "--no-local", tree.dir, to]
    return {**by_queue(lambda: PutRun(world, tree), world, workers, work, plan, log, kill_after_s), "exits": "0"}


def peer(world, run, programs, kill_after_s):
    """The figures of a peer's run, whose programs have begun. The last worker's processes may be killed."""
    late = threading.Timer(WAIT_S, lambda: [os.killpg(program.pid, signal.SIGKILL) for program in programs if program.returncode is None])
    late.start()
    try:
        if kill_after_s:
            time.sleep(max(0, run.begun + kill_after_s - time.monotonic()))
            open(world.dir + "/dead", "w").close()
            world.kill(HOSTS[-1:])
        for program in programs:
            run.used(program.usage())
    finally:
        late.cancel()
    figures = run.figures()
    world.empty(HOSTS)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(world.dir + "/dead")
    return {**figures, "exits": ", ".join(str(program.returncode) for program in programs)}


def rclones(world, tree, prefix, log, kill_after_s=None):
    lists = []
    for k, paths in enumerate(tree.parts(WORKERS)):
        lists.append("%s/list%d" % (world.dir, k))
        with open(lists[-1], "w") as f:
            f.write("".join(path + "\n" for path in paths))
    run = PutRun(world, tree)
    args = rclone(world.endpoint) + RCLONE_FRESH + ["copy", tree.dir, ":s3:bucket/" + prefix, "--files-from-raw"]
    return peer(world, run, [Worker(world, k, args + [name], "%s.work%d" % (log, k)) for k, name in enumerate(lists)], kill_after_s)


def s5cmds(world, tree, prefix, log, kill_after_s=None):
    lists = []
    for k, paths in enumerate(tree.parts(PARTS)):
        lists.append("%s/commands%d" % (world.dir, k))
        with open(lists[-1], "w") as f:
            f.write("".join("cp %s/%s s3://bucket/%s/%s\n" % (tree.dir, path, prefix, path) for path in paths))
    enter = world.dir + "/enter"
    with open(enter, "w") as f:
        # As ssh: options, host, command. A host that is dead does not answer.
        f.write('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift; [ "$1" != -- ] || shift\n'
                '[ "$host" != %s ] || ! [ -e %s/dead ] || exit 255\nexec ip netns exec %s-"$host" sh -c "$*"\n' % (HOSTS[-1], world.dir, NET))
    os.chmod(enter, 0o755)
    run = PutRun(world, tree)
    args = ["parallel", "--ssh", enter, "--retries", str(TRIES)] + ["--sshlogin=%d/%s" % (JOBS, host) for host in HOSTS]
    args += s5cmd(world.endpoint) + ["--log", "error", "--numworkers", str(CONCURRENCY // JOBS), "run", "{}", ":::"] + lists
    return peer(world, run, [Tool(at("c", args), stdout=open(log + ".parallel", "w"), stderr=subprocess.STDOUT, env=world.env)], kill_after_s)


def juicefs(world, tree, prefix, log, kill_after_s=None):
    path = "%s:%s" % (world.logins(), os.environ["PATH"])
    program = "%s/%s-juicefs" % (world.dir, NET)
    # The manager copies its program to this place of each worker, unless it is there.
    there = "/tmp/" + os.path.basename(program)
    for copy in (program, there):
        if not os.path.exists(copy):
            shutil.copy2(CACHE + "/venv/bin/juicefs", copy)
    to = "minio://%s:%s@%s/bucket/%s/" % (KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"], world.endpoint.split("//")[1], prefix)
    args = ["env", "PATH=" + path, program, "sync", "--worker", ",".join("root@" + address(host) for host in HOSTS[1:]),
            "--manager-addr", "%s:%d" % (address(HOSTS[0]), MANAGER_PORT), "--threads", str(CONCURRENCY), tree.dir + "/", to]
    try:
        before = world.ended_logins_s()
        run = PutRun(world, tree)
        peak = Peak(world, HOSTS[1:])
        peak.start()
        figures = peer(world, run, [Worker(world, 0, args, log + ".manager")], kill_after_s)
        run.used({"cpu_s": world.ended_logins_s() - before, "rss_mb": peak.end()})
        return {**figures, **run.programs(figures["wall_s"])}
    finally:
        os.unlink(there)


PEERS = {"rclone × %d" % WORKERS: rclones, "parallel + s5cmd": s5cmds, "juicefs sync": juicefs}
TOOLS = {FULLBORES: fullbores, FULLBORE_ALONE: lambda *args: fullbores(*args, workers=1), **PEERS}


def get_peers():
    get_tools(["s5cmd", "rclone", "juicefs"])
    if not shutil.which("parallel"):
        raise RuntimeError("no GNU parallel: apt-get install parallel")


def versions():
    """The first line that each peer says of its version."""
    for args in ([CACHE + "/rclone", "version"], s5cmd("") + ["version"], ["parallel", "--version"], [CACHE + "/venv/bin/juicefs", "version"]):
        print("%s: %s" % (os.path.basename(args[0]), sh(*args).splitlines()[0]), flush=True)


def checked(world, tree, name, prefix, log, kill_after_s=None):
    """One run and its check. A peer that loses a worker may leave files out."""
    figures = TOOLS[name](world, tree, prefix, log, kill_after_s)
    missing, wrong = differences(tree.rows, "%s/bucket/%s" % (world.files, prefix))
    world.remove(prefix)
    figures = {**figures, "missing": len(missing), "wrong": len(wrong)}
    is_whole = not missing and not wrong and set(figures["exits"].split(", ")) == {"0"}
    if not is_whole and not (kill_after_s and name in PEERS):
        raise RuntimeError("%s: exit %s; missing: %s; other content: %s; see %s*" % (name, figures["exits"], missing[:5], wrong[:5], log))
    return figures


def tools_of(a):
    if a.no_peers:
        return [FULLBORES, FULLBORE_ALONE]
    get_peers()
    versions()
    return list(TOOLS)


def put(a, results):
    tree, tools = Tree(a.work, a.put_files, a.put_size), tools_of(a)
    case, row = "put", "%d x %d B" % (a.put_files, a.put_size)
    world = Puts()
    try:
        raw, store = {1: [], WORKERS: []}, []
        for number in range(a.runs):
            for workers in raw:
                raw[workers].append(raw_mb_s(world, workers, "u"))
            store.append(store_mb_s(world, tree.dir, tree.bytes))
            for name in random.sample(tools, len(tools)):
                prefix = "put-%d-%d" % (tools.index(name), number)
                note(results, a, case, row, name, checked(world, tree, name, prefix, a.log + prefix))
        raw = {workers: statistics.median(rates) for workers, rates in raw.items()}
        print("\nput: %d files, %.0f MB, %d workers of %d Mbit/s, %d ms; plain sockets: %.1f MB/s, of one worker %.1f; the store takes %.0f MB/s" % (
            a.put_files, tree.bytes / 1e6, WORKERS, MBIT_S, RTT_MS, raw[WORKERS], raw[1], statistics.median(store)))
        print("| tool | median s | spread | MB/s | of plain sockets | time ÷ fullbore's | CPU-s | RSS MB | requests | machine busy, low priority | load |\n"
              + "|---" * 11 + "|")
        mine = {name: chosen(results, case, row, name) for name in tools}
        wall = {name: median(runs, "wall_s") for name, runs in mine.items()}
        for name in sorted(tools, key=wall.get):
            m = lambda key: median(mine[name], key)
            print("| %s | %.2f | %.2f–%.2f | %.1f | %.2f | %.2f | %.1f | %.0f | %d | %.0f %%, %.0f %% | %.1f |" % (
                name, wall[name], min(r["wall_s"] for r in mine[name]), max(r["wall_s"] for r in mine[name]), m("mb_s"),
                m("mb_s") / raw[1 if name == FULLBORE_ALONE else WORKERS], wall[name] / wall[FULLBORES], m("cpu_s"),
                max(r["rss_mb"] for r in mine[name]), m("requests"), 100 * m("busy"), 100 * m("low_busy"), m("load")))
        if not a.no_peers:
            best = min(PEERS, key=wall.get)
            judge("put", "rate of fullbore ÷ rate of the fastest peer, %s" % best, ">=", 1, wall[best] / wall[FULLBORES], median(mine[FULLBORES], "busy"))
        judge("put", "rate of %d workers ÷ rate of one" % WORKERS, ">=", SCALING[WORKERS], wall[FULLBORE_ALONE] / wall[FULLBORES],
              median(mine[FULLBORES], "busy"))
    finally:
        world.close()


def put_killed(a, results):
    tree, tools = Tree(a.work, a.put_files, a.put_size), [name for name in tools_of(a) if name != FULLBORE_ALONE]
    case, none, one = "put-killed", "none", "one of %d" % WORKERS
    world = Puts()
    try:
        for number in range(a.runs):
            for name in random.sample(tools, len(tools)):
                prefix = "put-all-%d-%d" % (tools.index(name), number)
                whole = note(results, a, case, none, name, checked(world, tree, name, prefix, a.log + prefix))
                prefix = "put-killed-%d-%d" % (tools.index(name), number)
                note(results, a, case, one, name, checked(world, tree, name, prefix, a.log + prefix, whole["wall_s"] / 2))
        print("\nput-killed: %s workers is killed at half time\n| tool | s without | s | ÷ | exit codes | files missing | other content |\n" % one
              + "|---" * 7 + "|")
        ratio = {}
        for name in tools:
            without, runs = chosen(results, case, none, name), chosen(results, case, one, name)
            ratio[name] = median(runs, "wall_s") / median(without, "wall_s")
            print("| %s | %s | %s | %.2f | %s | %s | %d |" % (
                name, spread(without), spread(runs), ratio[name], "; ".join(sorted({r["exits"] for r in runs})),
                "%d (%d–%d)" % (median(runs, "missing"), min(r["missing"] for r in runs), max(r["missing"] for r in runs)),
                max(r["wrong"] for r in runs)))
        judge("put-killed", "time with one of %d workers killed at half time ÷ without; no file missing" % WORKERS, "<=", KILLED_MOST, ratio[FULLBORES],
              median(chosen(results, case, one, FULLBORES), "busy"))
    finally:
        world.close()


def put_one(a, results):
    tree = Tree(a.work, 1, a.one_size)
    case, row = "put-one", "%d B" % a.one_size
    world = Puts()
    try:
        for number in range(a.runs):
            for name in random.sample([FULLBORES, FULLBORE_ALONE], 2):
                prefix = "put-one-%d-%d" % (TOOLS[name] is fullbores, number)
                note(results, a, case, row, name, checked(world, tree, name, prefix, a.log + prefix))
        many, one = chosen(results, case, row, FULLBORES), chosen(results, case, row, FULLBORE_ALONE)
        print("put-one: a file of %.0f MB: %s s by %d workers, %s s by one; rate of %d ÷ rate of one: %.2f" % (
            tree.bytes / 1e6, spread(many), WORKERS, spread(one), WORKERS, median(one, "wall_s") / median(many, "wall_s")), flush=True)
    finally:
        world.close()
