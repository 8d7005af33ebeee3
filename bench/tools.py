"""The compared programs: each fetches an archive from the mirrors of a Net into a directory."""
import ctypes, json, os, signal, subprocess, sys, time

from archives import HERE
from links import NET

FULLBORE = os.environ.get("FULLBORE") or os.path.realpath(HERE + "/../target/release/fullbore")
RAW_PORT = "7999"


PR_SET_CHILD_SUBREAPER = 36     # linux/prctl.h
LAUNCH = 'echo $$ >"$0" && exec "$@"'


class Tool(subprocess.Popen):
    """A running command whose resource usage is its own.

    A process inherits the peak memory of the program that it was before exec(2): ru_maxrss of a plain child is at least that
    of this interpreter, with all that the driver holds or ever held. A fork begins anew, so `setsid --fork` forks the
    command from a process of 1 MB. The orphan becomes our child, as we are the subreaper meanwhile.
    """

    def __init__(self, args, **options):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        told, tell = os.pipe()
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            super().__init__(["setsid", "--fork", "sh", "-c", LAUNCH, "/dev/fd/%d" % tell, *args], pass_fds=(tell,), **options)
            if self.wait():
                raise RuntimeError("setsid: exit %d" % self.returncode)
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(tell)
            with open(told) as pipe:
                line = pipe.readline()
        self.pid, self.returncode = int(line), None

    def usage(self):
        """Waits for the end. CPU time, and the peak memory of the largest process: the command or one that it waited for."""
        _, status, usage = os.wait4(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return {"cpu_s": usage.ru_utime + usage.ru_stime, "user_s": usage.ru_utime, "rss_mb": usage.ru_maxrss / 1024}


def machine_busy_s():
    """CPU seconds that all programs of this machine have used, servers and links included"""
    user, nice, system, idle, iowait, irq, softirq, *_ = map(int, open("/proc/stat").readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(args, log, during=None, env=None):
    """Wall, CPU (children included) and peak memory of one command. `during` gets the process and may end it."""
    start, busy = time.monotonic(), machine_busy_s()
    with open(log, "w") as out:
        process = Tool(args, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        stopped = during(process) if during else None
        usage = process.usage()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)      # a session of its own: Ctrl-C did not reach it
        raise
    wall, busy = time.monotonic() - start, machine_busy_s() - busy
    if process.returncode and not stopped:
        raise RuntimeError("%s: exit %d, see %s" % (args[0], process.returncode, log))
    return {"wall_s": wall, **usage, "busy": busy / wall / os.cpu_count()}


def timed(net, args, log, during=None):
    """`measure` at the client's end of the links."""
    return measure(net.client(args), log, during)


def fullbore(net, archive, dest, log, during=None, options=(), program=FULLBORE):
    args = [program, "mirror", "--to", dest, "--suite", archive.suite, "--arch", archive.arch, "--keyring", archive.keyring,
            "--json", "--report", log + ".html", *options]
    for url in net.urls:
        args += ["--from", url]
    if net.tls:
        args += ["--cacert", net.ca]
    result = timed(net, args, log, during)
    for line in open(log):
        if line.startswith("{") and '"summary"' in line:
            result["summary"] = json.loads(line)
    return result


def aria2(net, archive, dest, log, during=None):
    with open(log + ".list", "w") as f:
        for digest, _, path in archive.rows:
            f.write("\t".join(u + path for u in net.urls) + "\n  out=%s\n  checksum=sha-256=%s\n" % (path, digest))
    args = ["aria2c", "-q", "-j16", "-i", log + ".list", "-d", dest, "--file-allocation=none", "--auto-file-renaming=false",
            "--max-connection-per-server=4", "--uri-selector=feedback"]
    if net.tls:
        args += ["--ca-certificate=" + net.ca]
    return timed(net, args, log, during)


def debmirror(net, archive, dest, log, during=None):
    host = net.urls[0].split("/")[2]
    args = ["debmirror", dest, "--host=" + host, "--root=/", "--method=http", "--dist=" + archive.suite, "--section=main", "--arch=none", "--source",
            "--keyring=" + archive.keyring, "--diff=none", "--i18n", "--rsync-extra=none", "--check-gpg", "--postcleanup"]
    return timed(net, args, log, during)


def curl(net, archive, dest, log, during=None):
    with open(log + ".conf", "w") as f:
        for i, (_, _, path) in enumerate(archive.rows):
            f.write('url="%s%s"\noutput="%s/%s"\n' % (net.urls[i % len(net.urls)], path, dest, path))
    args = ["curl", "-sS", "-Z", "--parallel-max", "50", "--create-dirs", "-K", log + ".conf"]
    if net.tls:
        args += ["--http2", "--cacert", net.ca]
    return timed(net, args, log, during)


def raw(net, archive, dest, log, during=None, size=None):
    """No tool: as many bytes over the same links through plain sockets."""
    hosts = ["127.0.0.1"] if net.loop else ["10.77.0.%d" % (11 + i) for i in range(len(net.urls))]
    servers = []
    for i, host in enumerate(hosts):
        cmd = [sys.executable, HERE + "/rawcopy", "serve", host, RAW_PORT]
        servers.append(subprocess.Popen(cmd if net.loop else ["ip", "netns", "exec", "%s-s%d" % (NET, i + 1)] + cmd))
    time.sleep(0.5)
    try:
        return timed(net, [sys.executable, HERE + "/rawcopy", "fetch", str(size or archive.bytes), RAW_PORT] + hosts, log, during)
    finally:
        for s in servers:
            s.terminate()
            s.wait()


def dd(net, archive, dest, log, during=None):
    """No tool: as many bytes written in sequence to the same disk, and synced."""
    size = "count=%d" % archive.bytes
    return timed(net, ["dd", "if=/dev/zero", "of=" + dest + "/zeros", "bs=1M", size, "iflag=count_bytes", "conv=fsync"], log, during)


TOOLS = {"fullbore": fullbore, "aria2": aria2, "debmirror": debmirror, "curl": curl, "raw": raw, "dd": dd}
NO_FILES = ("raw", "dd")    # these leave nothing to verify
