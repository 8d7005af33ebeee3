"""The programs that are compared: each fetches an archive from the mirrors of a Net into a directory."""
import json, os, subprocess, sys, threading, time

from archives import HERE
from links import NET

FULLBORE = os.environ.get("FULLBORE") or os.path.realpath(HERE + "/../target/release/fullbore")
RAW_PORT = "7999"


def high_water_kb(pid):
    try:
        for line in open("/proc/%d/status" % pid):
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def machine_busy_s():
    """CPU seconds that all programs of this machine have used, servers and links included"""
    user, nice, system, idle, iowait, irq, softirq, *_ = map(int, open("/proc/stat").readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def timed(net, args, log, during=None):
    """Wall, CPU (children included) and peak memory of one command. `during` gets the process and may end it."""
    out = open(log, "w")
    start, busy = time.monotonic(), machine_busy_s()
    process = subprocess.Popen(net.client(args), stdout=out, stderr=subprocess.STDOUT)
    peak, done = [0], threading.Event()

    def watch():        # ru_maxrss would begin with the memory of this interpreter
        while not done.wait(0.02):
            peak[0] = max(peak[0], high_water_kb(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        stopped = during(process) if during else None
    finally:
        _, status, usage = os.wait4(process.pid, 0)
        wall, busy = time.monotonic() - start, machine_busy_s() - busy
        process.returncode = code = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
    if code and not stopped:
        raise RuntimeError("%s: exit %d, see %s" % (args[0], code, log))
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "rss_mb": peak[0] / 1024, "busy": busy / wall / os.cpu_count()}


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
            summary = result["summary"] = json.loads(line)
            # The kernel's own figure at the end; the watcher above may miss the last moment.
            result["rss_mb"] = max(result["rss_mb"], summary["peak_rss_bytes"] / 2**20)
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
