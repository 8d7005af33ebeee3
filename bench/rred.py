"""Drives a `rred` acquire method as apt does: capabilities, configuration, one request, its answer, the end of its input."""
import subprocess, time, urllib.parse

from tools import Tool


def quote(value):
    return urllib.parse.quote(value, safe="/:+,.;() $-_~[]@&*'?!<>{}|^`#")


def configuration(extra):
    """apt's own configuration as a 601 message, with root as the sandbox's user: the files here are root's."""
    lines = ["601 Configuration"]
    for line in subprocess.run(["apt-config", "dump"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        key, _, value = line.rstrip(";").partition(" ")
        lines.append("Config-Item: %s=%s" % (quote(key), quote(value[1:-1])))
    lines += ["Config-Item: %s=%s" % item for item in {"APT::Sandbox::User": "root", **extra}.items()]
    return "\n".join(lines) + "\n\n"


def request(old, new, start, patches, expected):
    """The 600 message; `expected` is None where the archive has merged the patches: apt says nothing then."""
    lines = ["600 URI Acquire", "URI: rred:" + quote(old), "Filename: " + new,
             "Start-SHA256-Hash: " + start["sha256"], "Start-Checksum-FileSize-Hash: %d" % start["size"]]
    for number, patch in enumerate(patches):
        lines += ["Patch-%d-SHA256-Hash: %s" % (number, patch["sha256"]), "Patch-%d-Checksum-FileSize-Hash: %d" % (number, patch["size"])]
    if expected:
        lines += ["Expected-SHA256: " + expected["sha256"], "Expected-Checksum-FileSize: %d" % expected["size"]]
    else:
        lines.append("Maximum-Size: %d" % patches[0]["size"])
    return "\n".join(lines) + "\n\n"


def message(pipe):
    lines = []
    for line in pipe:
        if not line.strip():
            if lines:
                break
            continue
        lines.append(line.rstrip("\n"))
    if not lines:
        raise RuntimeError("the method has ended without an answer")
    return lines[0][:3], dict(line.split(": ", 1) for line in lines[1:] if ": " in line)


def run(command, messages, log):
    """Wall and CPU from start to exit, peak memory, and the fields of the answer."""
    start = time.monotonic()
    process = Tool(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "w"), text=True)
    usage = None
    try:
        process.stdin.write(messages)
        process.stdin.flush()
        code = "100"
        while code not in ("201", "400", "401"):
            code, fields = message(process.stdout)
        process.stdin.close()
        usage = process.usage()
        wall = time.monotonic() - start
    finally:
        if usage is None:
            process.kill()
            process.wait()
    if code != "201":
        raise RuntimeError("%s: %s %s" % (command[-1], code, fields.get("Message", "")))
    return {"wall_s": wall, **usage, "answer": fields}
