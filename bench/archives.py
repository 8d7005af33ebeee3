"""The mirrored archives. Each is made once, in the work directory, and kept."""
import argparse, glob, gzip, hashlib, lzma, os, random, re, shutil, subprocess, tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ARCHIVE = os.environ.get("ARCHIVE") or os.path.realpath(HERE + "/../target/release/fullbore-archive")

# Debian 12 has these release architectures; `source` is beside them.
ARCHITECTURES = "amd64 arm64 armel armhf i386 mips64el mipsel ppc64el s390x riscv64".split()
FILE_LINE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (\S+)$", re.M)


def sh(*args, **kw):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw).stdout


def fill(directory, *options):
    """Makes a new archive there, by the testkit's program."""
    if not os.path.exists(ARCHIVE):
        raise RuntimeError("no %s: cargo build --release -p fullbore-testkit --bins" % ARCHIVE)
    sh(ARCHIVE, directory, *options)


def differences(rows, tree):
    """By sha256sum: which paths of the rows (SHA-256, size, path) are missing in the tree, and which have other content."""
    if not rows:
        raise RuntimeError("nothing to compare with %s" % tree)
    missing = [path for _, _, path in rows if not os.path.isfile("%s/%s" % (tree, path))]
    absent = set(missing)
    lines = "".join("%s  %s\n" % (digest, path) for digest, _, path in rows if path not in absent)
    if not lines:
        return missing, []
    r = subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "-"], input=lines, text=True, cwd=tree,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"})
    wrong = re.findall(r"^(.*): FAILED", r.stdout, re.M)
    if bool(r.returncode) != bool(wrong):
        raise RuntimeError("sha256sum in %s: exit %d: %s" % (tree, r.returncode, r.stderr[-500:]))
    return missing, wrong


def verify(rows, tree):
    """Raises when a file is missing or wrong."""
    missing, wrong = differences(rows, tree)
    if missing or wrong:
        raise RuntimeError("wrong result in %s: missing: %s; other content: %s" % (tree, missing[:5], wrong[:5]))


def manifest(path):
    """The rows of a manifest: SHA-256, size, path."""
    with open(path) as f:
        return [line.rstrip("\n").split("\t") for line in f]


SAMPLE = argparse.Namespace(files=2359, bytes="1336M", max_file="156M")


class Archive:
    """A tree that fullbore-archive made: states below dir, and what their indexes name."""

    def __init__(self, directory, arch="source", state="T0"):
        self.dir, self.arch, self.state = directory, arch, state
        self.suite = next(s for s in os.listdir(directory + "/T0/dists"))
        self.keyring = directory + "/key.gpg"
        path = "%s/manifest-%s.tsv" % (directory, state)
        self.rows = manifest(path) if os.path.exists(path) else []
        self.bytes = sum(int(r[1]) for r in self.rows)

    def check(self, tree):
        """sha256sum of every file; raises when one is missing or wrong"""
        verify(self.rows, tree)


def once(directory, make):
    """Calls make(directory) unless it has been made before."""
    if not os.path.exists(directory + "/made"):
        print("making %s" % directory, flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        make(directory)
        # nginx tells states of one size apart by nothing else.
        for number, state in enumerate(sorted(glob.glob(directory + "/T[0-9]*"))):
            for path in glob.glob(state + "/dists/*/*Release*"):
                seconds = int(os.stat(path).st_mtime) + number
                os.utime(path, (seconds, seconds))
        open(directory + "/made", "w").close()


def make(work, name, options):
    """The archive called name in the work directory."""
    directory = "%s/%s" % (work, name)
    if name == "sample":
        once(directory, lambda d: fill(d, "--files", str(options.files), "--bytes", options.bytes, "--max-file", options.max_file, "--seed", "7"))
        return Archive(directory)
    if name == "older":
        sample = make(work, "sample", options)
        once(directory, lambda d: older(sample, d))
        return Archive(directory, state="T1")
    if name == "many":
        # As many packages and files as Debian 12's main/source, index included; the files are small ones.
        once(directory, lambda d: fill(d, "--files", "105500", "--bytes", "700M", "--max-file", "2M", "--seed", "8"))
        return Archive(directory)
    if name == "indexes":
        once(directory, indexes)
        return Archive(directory, arch=",".join(ARCHITECTURES + ["source"]))
    if name in ("names", "names-equal"):
        once(directory, lambda d: names(d, equal=name == "names-equal"))
        return Archive(directory, arch="amd64", state="T1")
    raise ValueError(name)


def sign(archive, dist):
    """InRelease and Release.gpg of a changed Release, with the archive's own key"""
    with tempfile.TemporaryDirectory() as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--yes"]
        sh(*gpg, "--import", archive + "/secret.asc")
        sh(*gpg, "--clearsign", "-o", dist + "/InRelease", dist + "/Release")
        sh(*gpg, "--armor", "--detach-sign", "-o", dist + "/Release.gpg", dist + "/Release")
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], stderr=subprocess.DEVNULL)


def place(dist, path, data, write=True):
    """Writes an index and its by-hash name; returns its line for Release."""
    digest = hashlib.sha256(data).hexdigest()
    if write:
        by_hash = os.path.dirname(dist + "/" + path) + "/by-hash/SHA256"
        os.makedirs(by_hash, exist_ok=True)
        for name in (dist + "/" + path, by_hash + "/" + digest):
            open(name, "wb").write(data)
    return " %s %d %s" % (digest, len(data), path)


def older(sample, out, files=307, size=125_000_000):
    """T1 is the sample, T0 the same without some packages: so many files, so many bytes. Both are signed."""
    os.makedirs(out)
    sh("cp", "-al", sample.dir + "/T0", out + "/T1")
    sh("cp", "-al", sample.dir + "/T0", out + "/T0")
    dist = "%s/T0/dists/%s" % (out, sample.suite)
    sh("rm", "-rf", dist)       # hard links: what changes must be a copy
    sh("cp", "-a", "%s/T0/dists/%s" % (sample.dir, sample.suite), dist)
    stanzas = gzip.open(dist + "/main/source/Sources.gz", "rt").read().rstrip("\n").split("\n\n")
    random.Random(3).shuffle(stanzas)
    weigh = lambda stanza: (len(FILE_LINE.findall(stanza)), sum(int(r[1]) for r in FILE_LINE.findall(stanza)))
    left_files, left_bytes, keep, drop = files, size, [], []
    # A few large packages bring nine tenths of the bytes, small ones the number of files, as in a real update.
    for stanza in sorted(stanzas, key=lambda s: weigh(s)[1] < size / 40):
        n, b = weigh(stanza)
        large = size / 40 <= b <= size / 8 and b <= left_bytes - size / 10
        small = b < size / 40 and b <= 3 * n * left_bytes / max(1, left_files)
        if n <= left_files and (large or small):
            left_files, left_bytes = left_files - n, left_bytes - b
            drop.append(stanza)
        else:
            keep.append(stanza)
    text = ("\n\n".join(sorted(keep)) + "\n\n").encode()
    shutil.rmtree(dist + "/main/source/by-hash")
    new = [place(dist, "main/source/Sources", text, write=False),
           place(dist, "main/source/Sources.gz", gzip.compress(text, 9, mtime=0)),
           place(dist, "main/source/Sources.xz", lzma.compress(text))]
    new = {line.split()[2]: line for line in new}
    lines = []
    for line in open(dist + "/Release").read().split("\n"):
        m = FILE_LINE.match(line)
        line = new.get(m[3], line) if m else line
        lines.append("Date: Sat, 01 Jan 2022 00:00:00 UTC" if line.startswith("Date:") else line)
    open(dist + "/Release", "w").write("\n".join(lines))
    sign(sample.dir, dist)
    gone = {name for stanza in drop for _, _, name in FILE_LINE.findall(stanza)}
    old = open(out + "/manifest-T0.tsv", "w")
    for row in sample.rows:
        if os.path.basename(row[2]) in gone:
            os.unlink("%s/T0/%s" % (out, row[2]))
        else:
            old.write("\t".join(row) + "\n")
    old.close()
    shutil.copy(sample.dir + "/key.gpg", out)
    shutil.copy(sample.dir + "/manifest-T0.tsv", out + "/manifest-T1.tsv")
    print("older state: %d files, %.1f MB less" % (files - left_files, (size - left_bytes) / 1e6))


def indexes(out):
    """Indexes alone, of Debian 12's size: Packages of all its architectures and Sources. There is no pool."""
    os.makedirs(out)
    with tempfile.TemporaryDirectory(dir=out) as tmp:
        fill(tmp + "/source", "--no-pool", "--files", "105500", "--seed", "9")
        fill(tmp + "/binary", "--kind", "binary", "--no-pool", "--no-contents", "--files", "63400", "--seed", "9")
        shutil.move(tmp + "/source/T0", out + "/T0")
        for name in ("key.gpg", "secret.asc"):
            shutil.copy(tmp + "/source/" + name, out)
        packages = gzip.open(tmp + "/binary/T0/dists/sid/main/binary-amd64/Packages.gz", "rt").read()
    dist = out + "/T0/dists/sid"
    release = open(dist + "/Release").read().replace("Architectures: all amd64", "Architectures: all " + " ".join(ARCHITECTURES)).rstrip("\n").split("\n")
    for arch in ARCHITECTURES:
        # What is for all architectures is the same file everywhere, as in Debian; the rest differs.
        def own(stanza):
            if "\nArchitecture: all\n" in stanza:
                return stanza
            stanza = stanza.replace("\nArchitecture: amd64\n", "\nArchitecture: %s\n" % arch).replace("_amd64.deb\n", "_%s.deb\n" % arch)
            return re.sub(r"\nSHA256: (\w+)", lambda m: "\nSHA256: " + hashlib.sha256((m[1] + arch).encode()).hexdigest(), stanza)
        text = ("\n\n".join(map(own, packages.rstrip("\n").split("\n\n"))) + "\n\n").encode()
        path = "main/binary-%s/Packages" % arch
        xz = subprocess.run(["xz", "-T0", "-6c"], input=text, stdout=subprocess.PIPE, check=True).stdout
        release += [place(dist, path, text, write=False), place(dist, path + ".gz", gzip.compress(text, 6, mtime=0)), place(dist, path + ".xz", xz)]
    open(dist + "/Release", "w").write("\n".join(release) + "\n")
    sign(out, dist)


NAMES = 500     # translations, as many names of indexes as a large archive changes in a day


def names(out, equal):
    """Two states with the same packages, in the second of which NAMES indexes are others, of other sizes or of equal ones."""
    fill(out, "--kind", "binary", "--no-contents", "--no-pdiffs", "--files", "12", "--bytes", "1M", "--max-file", "300k", "--seed", "5")
    sh("cp", "-a", out + "/T0", out + "/T1")
    shutil.copy(out + "/manifest-T0.tsv", out + "/manifest-T1.tsv")
    for state, date in ("T0", "Sat, 04 Jan 2025 00:00:00 UTC"), ("T1", "Sun, 05 Jan 2025 00:00:00 UTC"):
        dist = "%s/%s/dists/sid" % (out, state)
        lines = re.sub(r"(?m)^Date: .*", "Date: " + date, open(dist + "/Release").read().rstrip("\n")).split("\n")
        for number in range(NAMES):
            language = "".join(chr(ord("a") + number // 26 ** k % 26) for k in (2, 1, 0))
            more = "" if equal else " the second one" * int(state[1:])
            text = ("Package: hello\nDescription-%s: state %s%s\n" % (language, state, more)).encode()
            path = "main/i18n/Translation-" + language
            lines += [place(dist, path, text, write=False), place(dist, path + ".xz", lzma.compress(text))]
        open(dist + "/Release", "w").write("\n".join(lines) + "\n")
        sign(out, dist)
