"""The environment of a run: the links and mirrors of a case, and the disk that it writes to."""
import json, os, re, shutil, subprocess, tempfile, threading, time

from archives import HERE, sh

LAB = HERE + "/lab"
NET = os.environ.get("BENCH_NET", "fbbench")    # two runs beside each other need different names
LOOPBACK_PORT = 8099
SLOWDISK = os.environ.get("SLOWDISK") or os.path.realpath(HERE + "/../target/release/fullbore-slowdisk")

NGINX = """daemon off; user root; worker_processes 1; pid %(d)s/pid; error_log %(d)s/err;
events { worker_connections 1024; } http {
log_format lab '$remote_addr $msec $connection "$request" $status "$http_range" $body_bytes_sent $bytes_sent'; access_log %(d)s/log lab; sendfile on; tcp_nopush on; keepalive_requests 1000; default_type application/octet-stream;
client_body_temp_path %(d)s/t; proxy_temp_path %(d)s/t; fastcgi_temp_path %(d)s/t; uwsgi_temp_path %(d)s/t; scgi_temp_path %(d)s/t;
server { listen %(address)s:%(port)d; root %(root)s; } }"""

# Of each segment on the wire: IP and TCP headers with timestamps, and Ethernet's overhead as wanlink counts it.
SEGMENT_HEADER_BYTES = 52 + 38


class Net:
    """The links and mirrors of a case. Without links: one nginx on loopback."""

    def __init__(self, case, archive):
        self.loop = not case["links"]
        self.tls = case.get("tls")
        if self.loop:
            self.dir = tempfile.mkdtemp(prefix="fbbench")
            os.chmod(self.dir, 0o755)
            root = os.path.realpath("%s/%s" % (archive.dir, case.get("state", "T0")))
            open(self.dir + "/conf", "w").write(NGINX % {"d": self.dir, "root": root, "address": "127.0.0.1", "port": LOOPBACK_PORT})
            self.server = subprocess.Popen(["nginx", "-c", self.dir + "/conf", "-e", self.dir + "/err"])
            self.urls = ["http://127.0.0.1:%d/" % LOOPBACK_PORT]
            self.logs = [self.dir + "/log"]
            time.sleep(0.5)
            return
        subprocess.run([LAB + "/mirrors", "down", NET], stderr=subprocess.DEVNULL)
        subprocess.run([LAB + "/wan-down", NET], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        access = ["--access", case["access"]] if case.get("access") else []
        sh(LAB + "/wan-up", NET, *access, "--bufs", "default", "--cc", "cubic", "--max-seconds", "7200", *case["links"])
        state = case.get("state", "T0")
        mirrors = [m if "state=" in m else "%s,state=%s" % (m, state) for m in case["mirrors"]]
        sh(LAB + "/mirrors", "up", NET, archive.dir, *mirrors)
        self.urls = ["%s://s%d.lab/" % ("https" if self.tls else "http", i + 1) for i in range(len(mirrors))]
        self.logs = ["/run/lab-mirrors/%s/s%d.log" % (NET, i + 1) for i in range(len(mirrors))]
        self.ca = "/run/lab-mirrors/%s/ca.pem" % NET

    def client(self, args):
        return args if self.loop else ["ip", "netns", "exec", NET + "-c"] + args

    def set(self, host, change):
        sh(LAB + "/mirrors", "set", NET, host, change)

    def stats(self):
        return {} if self.loop else json.loads(sh("/run/lab-wan/wanlink", "ctl", "/run/lab-wan/%s/sock" % NET, "stats"))

    def payload(self):
        """bytes of TCP payload that came to the client so far, over all links"""
        down = [s for s in self.stats()["stages"] if s["dir"] == "down" and s["link"]]
        return sum(s["wire_bytes"] - s["segments"] * SEGMENT_HEADER_BYTES for s in down)

    def unread(self):
        """bytes in the client's socket buffers that its program has not read"""
        rows = sh("ip", "netns", "exec", NET + "-c", "ss", "-Htn", "state", "established").splitlines()
        return sum(int(row.split()[0]) for row in rows)

    def requests(self):
        """per mirror: requests answered, by protocol, from its access log"""
        result = []
        for log in self.logs:
            found = {}
            for line in open(log, errors="replace") if os.path.exists(log) else ():
                m = re.search(r'"[A-Z]+ \S+ (HTTP/[0-9.]+)"', line)
                if m:
                    found[m[1]] = found.get(m[1], 0) + 1
            result.append(found)
        return result

    def head_bytes(self):
        """bytes of response heads that nginx sent, from its access log (its last two fields)"""
        heads = 0
        for log in self.logs:
            for line in open(log):
                body, sent = line.split()[-2:]
                heads += int(sent) - int(body)
        return heads

    def down(self, keep=None):
        """ends everything; the access logs are kept as KEEP.1.access and so on"""
        for i, log in enumerate(self.logs, 1):
            if keep and os.path.exists(log):
                shutil.copy(log, "%s.%d.access" % (keep, i))
        if self.loop:
            self.server.terminate()
            self.server.wait()
            shutil.rmtree(self.dir)
        else:
            sh(LAB + "/mirrors", "down", NET)
            sh(LAB + "/wan-down", NET)


class Timeline(threading.Thread):
    """What came over the links, in steps: lists of MB/s."""

    STEP_S = 0.25

    def __init__(self, net):
        super().__init__()
        self.net, self.ended, self.mb_per_s = net, threading.Event(), []

    def run(self):
        at, before = time.monotonic(), self.net.payload()
        while not self.ended.wait(self.STEP_S):
            now, payload = time.monotonic(), self.net.payload()
            self.mb_per_s.append(round((payload - before) / 1e6 / (now - at), 1))
            at, before = now, payload

    def end(self):
        self.ended.set()
        self.join()
        return self.mb_per_s


class Memory:
    """a directory in RAM"""

    def __init__(self):
        self.path = "/dev/shm/%s-dest" % NET
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path)

    def written(self):
        return None

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


class SlowDisk:
    """ext4 on a disk that writes so many bytes per second (fullbore-testkit's fullbore-slowdisk)"""

    SIZE_BYTES = 4_000_000_000

    def __init__(self, rate):
        if not os.path.exists(SLOWDISK):
            raise RuntimeError("no %s: cargo build --release -p fullbore-testkit --bins" % SLOWDISK)
        self.dir = tempfile.mkdtemp(prefix=NET, dir="/dev/shm")
        os.makedirs(self.dir + "/mount")
        args = [SLOWDISK, self.dir + "/mount", self.dir + "/disk", "--rate", str(rate), "--size", str(self.SIZE_BYTES)]
        self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.device = self.process.stdout.readline().strip()
        if not self.device:
            raise RuntimeError("fullbore-slowdisk did not start")
        self.path = self.dir + "/mount/archive"
        os.makedirs(self.path)
        self.before = 0
        self.before = self.written()        # making the file system wrote, too

    def written(self):
        """bytes that went to the disk itself"""
        self.process.stdin.write("written\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) - self.before

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.dir)
