"""Roots of real packages on fresh file systems, and the syncs that reach the disk below them."""
import glob, json, os, shutil, subprocess, tempfile, time

from links import SLOWDISK

# The sets of packages that are installed on top of the root, without recommended ones.
SETS = {
    "small": ["build-essential", "python3-pandas"],
    "large": ["build-essential", "xfce4", "python3-scipy", "python3-pandas", "libcatalyst-perl"],
}
ALSO = ["eatmydata"]
TRACING = "/sys/kernel/tracing"


def quiet(args, **more):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        raise RuntimeError("%s: ended with %d\n%s" % (" ".join(args), done.returncode, done.stdout[-3000:]))
    return done.stdout


def base(work, suite, packages):
    """A tar file of a root with apt, its lists, and the .debs of a set in apt's cache. Made once, by mmdebstrap."""
    path = "%s/roots/%s-%s.tar" % (work, suite, packages)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        print("making %s …" % path, flush=True)
        hook = 'chroot "$1" apt-get -q -y install --no-install-recommends --download-only ' + " ".join(SETS[packages])
        quiet(["mmdebstrap", "--variant=apt", "--format=tar", "--include=" + ",".join(ALSO), "--skip=cleanup/apt",
               "--customize-hook=" + hook, suite, path + ".new"], env={**os.environ, "LC_ALL": "C"})
        os.rename(path + ".new", path)
    return path


class Disk:
    """A fresh ext4 on a loop device: over a file on the disk that holds `work`, or, with `flush_ms`, over one in memory
    whose flushes take as long."""

    SIZE_BYTES = 12_000_000_000

    def __init__(self, work, flush_ms=None):
        self.process = None
        self.dir = tempfile.mkdtemp(prefix="root", dir="/dev/shm" if flush_ms else work)
        self.path = self.dir + "/mount"
        os.makedirs(self.path)
        if flush_ms:
            args = [SLOWDISK, self.path, self.dir + "/disk", "--rate", "4000000000", "--flush-ms", str(flush_ms),
                    "--size", str(self.SIZE_BYTES)]
            self.process = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.device = self.process.stdout.readline().strip()
            if not self.device:
                raise RuntimeError("fullbore-slowdisk did not start")
        else:
            image = self.dir + "/disk"
            with open(image, "wb") as f:
                f.truncate(self.SIZE_BYTES)
            quiet(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", image])
            self.device = quiet(["losetup", "--find", "--show", "--direct-io=on", image]).strip()
            quiet(["mount", self.device, self.path])

    def unpack(self, tar):
        """The root, all of it on the disk."""
        root = self.path + "/root"
        os.mkdir(root)
        quiet(["tar", "-C", root, "--xattrs", "--xattrs-include=*", "-xpf", tar])
        with open(root + "/usr/sbin/policy-rc.d", "w") as f:
            f.write("#!/bin/sh\nexit 101\n")
        os.chmod(root + "/usr/sbin/policy-rc.d", 0o755)
        quiet(["mount", "-t", "proc", "proc", root + "/proc"])
        os.sync()
        time.sleep(1)
        return root

    def flushes(self):
        """that the kernel has sent to the device"""
        with open("/sys/block/%s/stat" % os.path.basename(self.device)) as f:
            return int(f.read().split()[15])

    def sync(self):
        begin = time.monotonic()
        quiet(["sync", "-f", self.path])
        return time.monotonic() - begin

    def close(self):
        for mount in glob.glob(self.path + "/root*/proc"):
            subprocess.run(["umount", mount], stderr=subprocess.DEVNULL)
        if self.process:
            self.process.stdin.close()
            self.process.wait()
        else:
            quiet(["umount", self.path])
            quiet(["losetup", "--detach", self.device])
        shutil.rmtree(self.dir, ignore_errors=True)


class Syncs:
    """Calls that reach ext4 on one device, counted by the kernel's own tracepoints: below any filter or library."""

    EVENTS = ("ext4_sync_file_enter", "ext4_sync_fs")

    def __init__(self, device):
        if not os.path.isdir(TRACING + "/events"):
            quiet(["mount", "-t", "tracefs", "tracefs", TRACING])
        number = os.stat(device).st_rdev
        self.dev = os.major(number) << 20 | os.minor(number)
        self.dir = tempfile.mkdtemp(prefix="fullbore", dir=TRACING + "/instances")
        self.write("buffer_size_kb", "16384")
        for event in self.EVENTS:
            self.write("events/ext4/%s/filter" % event, "dev == %d" % self.dev)
            self.write("events/ext4/%s/enable" % event, "1")

    def write(self, name, text):
        with open("%s/%s" % (self.dir, name), "w") as f:
            f.write(text)

    def counts(self):
        counts = dict.fromkeys(self.EVENTS, 0)
        with open(self.dir + "/trace") as f:
            for line in f:
                for event in self.EVENTS:
                    counts[event] += ": %s:" % event in line
        for cpu in glob.glob(self.dir + "/per_cpu/cpu*/stats"):
            lost = [line for line in open(cpu) if line.startswith("overrun:")]
            if lost and int(lost[0].split()[1]):
                raise RuntimeError("the trace buffer is too small")
        return counts

    def close(self):
        os.rmdir(self.dir)


def probe_flush(path):
    """Seconds that an fsync of a small changed file takes on a disk; the median of 20."""
    times = []
    fd = os.open(path + "/probe", os.O_RDWR | os.O_CREAT)
    for _ in range(20):
        os.pwrite(fd, os.urandom(4096), 0)
        begin = time.monotonic()
        os.fsync(fd)
        times.append(time.monotonic() - begin)
    os.close(fd)
    os.unlink(path + "/probe")
    return sorted(times)[10]
