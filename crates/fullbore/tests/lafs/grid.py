"""A real grid of Tahoe-LAFS storage nodes, and a stock client node beside it.

  grid.py DIR SERVERS K,H,N [HOST...]      starts them; describes them in one line of JSON on stdout;
                                           stops them when its stdin ends

Run by the Python of a venv with tahoe-lafs in it. Each node is a process of its own in DIR/s0, DIR/s1, ...;
the client is DIR/client, a directory for `--node` as any user has. HOSTs: addresses of the servers, by
default all on loopback; with a prefix "NETNS=" a server runs in that network namespace.
"""
import base64, hashlib, json, os, signal, socket, subprocess, sys, time, urllib.request

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

BIN = os.path.dirname(sys.executable)


def free_port(host):
    s = socket.socket()
    s.bind((host, 0))
    return s.getsockname()[1]


def node(path, name, settings):
    os.makedirs(path + "/private")
    open(path + "/tahoe-client.tac", "w").close()
    with open(path + "/tahoe.cfg", "w") as f:
        f.write("[node]\nnickname = %s\n%s" % (name, settings))


def run(path, netns=None):
    prefix = ["ip", "netns", "exec", netns] if netns else []
    log = open(path + "/run.log", "ab")
    return subprocess.Popen(prefix + [BIN + "/tahoe", "run", "--allow-stdin-close", path], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait(what, ready, processes):
    until = time.time() + 120
    while not ready():
        for path, p in processes:
            if p.poll() is not None:
                sys.exit("%s ended: %s" % (path, open(path + "/run.log").read()[-2000:]))
        if time.time() > until:
            sys.exit("no %s within 120 s" % what)
        time.sleep(0.2)


def listening(host, port, netns):
    if netns:
        out = subprocess.run(["ip", "netns", "exec", netns, "ss", "-Hltn", "sport = :%d" % port], capture_output=True)
        return bool(out.stdout.strip())
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


def pin(path):
    certificate = x509.load_pem_x509_certificate(open(path + "/private/node.pem", "rb").read())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.urlsafe_b64encode(hashlib.sha256(key).digest()).rstrip(b"=").decode()


def main():
    directory, count, encoding, *hosts = sys.argv[1:]
    needed, happy, total = encoding.split(",")
    directory = os.path.realpath(directory)
    servers, processes = [], []
    for i in range(int(count)):
        netns, _, host = (hosts[i % len(hosts)] if hosts else "127.0.0.1").rpartition("=")
        path, port = "%s/s%d" % (directory, i), free_port("127.0.0.1" if netns else host)
        node(path, "s%d" % i, "tub.port = tcp:%d:interface=%s\ntub.location = tcp:%s:%d\nweb.port =\n"
             "[storage]\nenabled = true\nreserved_space = 0\n" % (port, host, host, port))
        servers.append({"dir": path, "host": host, "port": port, "netns": netns})
        processes.append((path, run(path, netns)))
    announced = {}
    try:
        for server, (path, process) in zip(servers, processes):
            wait("port of " + path, lambda: os.path.exists(path + "/private/storage.furl")
                 and listening(server["host"], server["port"], server["netns"]), processes)
            furl = open(path + "/private/storage.furl").read().strip()
            # Addresses of a node with several interfaces: the one that was asked for.
            server["nurl"] = "pb://%s@%s:%d/%s#v=1" % (pin(path), server["host"], server["port"], furl.rsplit("/", 1)[1])
            server["id"] = open(path + "/node.pubkey").read().strip().removeprefix("pub-") \
                if os.path.exists(path + "/node.pubkey") else os.path.basename(path)
            server["pid"] = process.pid
            announced[server["id"]] = {"ann": {
                "nickname": os.path.basename(path), "anonymous-storage-FURL": furl,
                "anonymous-storage-NURLs": [server["nurl"]], "service-name": "storage"}}
        client, port = directory + "/client", free_port("127.0.0.1")
        node(client, "client", "web.port = tcp:%d:interface=127.0.0.1\ntub.port = disabled\ntub.location = disabled\n"
             "[client]\nshares.needed = %s\nshares.happy = %s\nshares.total = %s\n[storage]\nenabled = false\n"
             % (port, needed, happy, total))
        with open(client + "/private/servers.yaml", "w") as f:
            yaml.safe_dump({"storage": announced}, f)
        netns = os.environ.get("GRID_CLIENT_NETNS")
        processes.append((client, run(client, netns)))
        # Its operations need another way when it is in a namespace: `ip netns exec` of whoever asks.
        url = "http://127.0.0.1:%d/" % port

        def connected():
            curl = (["ip", "netns", "exec", netns] if netns else []) + ["curl", "-sf", url + "?t=json"]
            out = subprocess.run(curl, capture_output=True).stdout
            return out and sum(s["connection_status"].lower().startswith("connected")
                               for s in json.loads(out)["servers"]) == len(servers)

        wait("client with %s servers" % count, connected, processes)
        print(json.dumps({"servers": servers, "client": {"dir": client, "url": url, "pid": processes[-1][1].pid}}), flush=True)
        sys.stdin.read()
    finally:
        for _, process in processes:
            # A stopped process hears of nothing but this.
            process.send_signal(signal.SIGCONT)
            process.kill()
        for _, process in processes:
            process.wait()


main()
