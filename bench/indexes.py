"""Real indexes of Debian in successive states, with patches between them that have the sizes of Debian's.

The first state of each is real: the largest `Packages` of this machine's sources, and the first 430.0 MB of the largest
`Contents-all`. apt downloads both, with its own configuration. The later states are made from the first one, because an
archive's past is not available. 56 steps have patches whose total size is that of the patches in Debian sid's index of
patches (14 days). The last patch has the size given below. Each step changes random places. This is the worst case: real
changes are closer together, and leave more of a compressed index unchanged.
"""
import array, glob, gzip, hashlib, json, math, os, random, shutil, subprocess

STEPS = 56
# Bytes of the last patch and its places, the median of the others and their sum (sid, index of 2026-10-30; the last patch of
# Contents is as in a blog post of 2015 about slow pdiffs).
KINDS = {
    "contents": {"bytes": 430_000_000, "last": 75_000, "places": 233, "median": 35_000, "total": 6_700_000},
    "packages": {"bytes": None, "last": 123_444, "places": 505, "median": 79_000, "total": 5_500_000},
}
PATCH_BYTES_MAX = 1_500_000
# States that are kept: the ends of 56, 20, 4 and 1 patches, the one before these, and the last.
KEPT = (0, 36, 52, 54, 55, 56)


def fetch(work):
    """The real ones, as apt lays them down; keyed by kind."""
    top = os.path.realpath(work) + "/apt"
    found = lambda: {kind: max(glob.glob(top + "/lists/*" + end), key=os.path.getsize, default=None) for kind, end in
                     (("contents", "_Contents-all"), ("packages", "_Packages"))}
    if not all(found().values()):
        for directory in ("/lists/partial", "/cache/archives/partial"):
            os.makedirs(top + directory, exist_ok=True)
        open(top + "/status", "w").close()
        target = "Acquire::IndexTargets::deb::Contents-all::"
        # From where this machine has its packages; of several suites the largest index is taken.
        options = {"Dir::State": top, "Dir::State::lists": top + "/lists", "Dir::State::status": top + "/status", "Dir::Cache": top + "/cache",
                   "APT::Sandbox::User": "root", "APT::Architecture": "amd64", "Acquire::Languages": "none", "Acquire::GzipIndexes": "false",
                   target + "MetaKey": "$(COMPONENT)/Contents-all", target + "ShortDescription": "Contents-all",
                   target + "Description": "Contents-all", target + "DefaultEnabled": "true", target + "KeepCompressed": "false"}
        args = ["apt-get", "update", "-q"] + [a for item in options.items() for a in ("-o", "%s=%s" % item)]
        subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    return found()


def sizes(kind, rng):
    """Bytes of each patch, oldest first."""
    k = KINDS[kind]
    drawn = [min(PATCH_BYTES_MAX, rng.lognormvariate(math.log(k["median"]), 1.1)) for _ in range(STEPS - 1)]
    scale = (k["total"] - k["last"]) / sum(drawn)
    return [int(size * scale) for size in drawn] + [k["last"]]


def altered(line, rng):
    """A line as a new version of a package would have it."""
    key, _, value = line.rstrip(b"\n").partition(b": ")
    if key in (b"SHA256", b"MD5sum", b"Description-md5"):
        return key + b": " + b"%0*x" % (len(value), rng.getrandbits(4 * len(value))) + b"\n"
    return line.rstrip(b"\n") + b"%d\n" % rng.randrange(100)


def hunks(lines, size, places, rng):
    """Changes of some places of a list of lines: (first line, lines that go, lines that come), in order."""
    per_place = size / places
    at = sorted(rng.sample(range(len(lines) // 16), places))
    result = []
    for place in at:
        first = place * 16 + rng.randrange(4)
        what, budget = rng.random(), rng.expovariate(1 / per_place) * 0.9
        new = []
        while what > 0.1 and (not new or sum(map(len, new)) < budget):
            new.append(altered(lines[min(first + len(new), len(lines) - 1)], rng))
        gone = min(len(new), 10) if what > 0.45 else rng.randrange(1, 8) if what < 0.1 else 0
        result.append((first, gone, new))
    return result


def script(changes):
    """As `diff --ed` writes them."""
    out = []
    for first, gone, new in reversed(changes):
        lines = b"%d" % (first + gone) if gone == 1 else b"%d,%d" % (first + 1, first + gone)
        if not new:
            out.append(lines + b"d\n")
        else:
            out += [lines + b"c\n" if gone else b"%da\n" % first, *new, b".\n"]
    return b"".join(out)


def apply(items, changes, come):
    """A list or array with the changes made; `come` gives what a change brings."""
    result, done = items[:0], 0
    for change in changes:
        result += items[done:change[0]]
        result += come(change)
        done = change[0] + change[1]
    return result + items[done:]


def merged(origin, lines, before):
    """The changes from the state that the numbers in `origin` (-1: new) are lines of."""
    changes, expected, start, i = [], 0, None, 0
    for i, number in enumerate(origin):
        if number == expected:
            if start is not None:
                changes.append((number_at_start, 0, lines[start:i]))
                start = None
            expected += 1
        elif number < 0:
            if start is None:
                start, number_at_start = i, expected
        else:
            new = lines[start:i] if start is not None else []
            changes.append((expected, number - expected, new))
            start, expected = None, number + 1
    if start is not None or expected < before:
        changes.append((expected, before - expected, lines[start:] if start is not None else []))
    return changes


def make(work, kind, source):
    """Writes states and patches of one kind below `work`, once; gives what is known of them."""
    top = "%s/%s" % (work, kind)
    if not os.path.exists(top + "/made.json"):
        print("making %s (some minutes)" % top, flush=True)
        shutil.rmtree(top, ignore_errors=True)
        os.makedirs(top)
        rng = random.Random(kind)
        with open(source, "rb") as f:
            text = f.read(KINDS[kind]["bytes"] or -1)
        lines = text[:text.rfind(b"\n") + 1].splitlines(keepends=True)
        del text
        states, patches, origins = [], [], {}
        per_place = KINDS[kind]["last"] / KINDS[kind]["places"]
        for step, size in enumerate(sizes(kind, rng) + [None]):
            digest, length = hashlib.sha256(), 0
            out = open("%s/T%d" % (top, step), "wb") if step in KEPT else None
            for i in range(0, len(lines), 10_000):
                piece = b"".join(lines[i:i + 10_000])
                digest.update(piece)
                length += len(piece)
                if out:
                    out.write(piece)
            if out:
                out.close()
                origins[step] = array.array("l", range(len(lines)))
            states.append({"size": length, "sha256": digest.hexdigest()})
            if size is None:
                break
            changes = hunks(lines, size, KINDS[kind]["places"] if step == STEPS - 1 else max(1, int(size / per_place)), rng)
            patches.append(write_patch("%s/P%02d.gz" % (top, step), changes))
            lines = apply(lines, changes, lambda change: change[2])
            counts = lambda change: array.array("l", [-1] * len(change[2]))
            origins = {first: apply(origin, changes, counts) for first, origin in origins.items()}
        joined = {}
        for first, origin in origins.items():
            if first < STEPS:
                with open("%s/T%d" % (top, first), "rb") as f:
                    before = sum(piece.count(b"\n") for piece in iter(lambda: f.read(1 << 20), b""))
                joined[first] = write_patch("%s/M%02d.gz" % (top, first), merged(origin, lines, before))
        json.dump({"states": states, "patches": patches, "merged": joined}, open(top + "/made.json", "w"), indent=1)
    made = json.load(open(top + "/made.json"))
    made["dir"], made["merged"] = top, {int(first): patch for first, patch in made["merged"].items()}
    return made


def write_patch(path, changes):
    text = script(changes)
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(text)
    return {"path": path, "places": len(changes), "size": len(text), "sha256": hashlib.sha256(text).hexdigest(),
            "gz_size": os.path.getsize(path), "gz_sha256": hashlib.sha256(open(path, "rb").read()).hexdigest()}
