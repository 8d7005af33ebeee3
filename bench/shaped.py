"""Links that limit each connection: a client, and one namespace with nginx for each mirror.

nginx's own `limit_rate` counts per request and lets a first burst through. Here the server's end of each link has an htb
class per connection, chosen by the client's port. Linux gives consecutive connections to one address even ports that are 2
to 16 apart, so the last 16 connections never share one of 128 classes. The sending socket waits for its class (TCP small
queues), hence nothing is dropped. Without a round trip the links are veth pairs; with one they are the lab's `wan`.
"""
import os, shutil, subprocess, tempfile, time

from archives import sh
from links import LAB, NET, NGINX

CLASSES = 128               # of 4 connections per host, 16 at most
PORT = 80
WIRE = 1514 / 1448          # bytes of a full Ethernet frame for each byte of its TCP payload
BURST_S, BURST_MIN = 0.01, 3000     # htb's timer is coarser than a packet at high rates; two packets at low ones
WAN_LINK = "down=1g,up=1g"


def inside(namespace, *args, **kw):
    return sh("ip", "netns", "exec", namespace, *args, **kw)


class Shaped:
    """`count` mirrors that serve the directory `root`. `choose` says which of them the next program gets."""

    tls = loop = None

    def __init__(self, root, count, rtt_ms=0):
        self.wan = rtt_ms > 0
        self.client_ns, self.servers = NET + "-c", ["%s-s%d" % (NET, i + 1) for i in range(count)]
        self.device = "wan0" if self.wan else "link0"
        self.header_bytes = 52 if self.wan else 66      # of a packet as the client's devices count it
        self.hosts = [("10.77.0.%d" % (11 + i)) if self.wan else "10.78.%d.2" % (i + 1) for i in range(count)]
        self.urls, self.processes = [], []
        self.dir = tempfile.mkdtemp(prefix=NET)
        self.logs = ["%s/%d/log" % (self.dir, i) for i in range(count)]
        self.take_down_links()
        if self.wan:
            link = "%d*rtt=%gms,%s" % (count, rtt_ms, WAN_LINK)
            sh(LAB + "/wan-up", NET, "--bufs", "default", "--cc", "cubic", "--max-seconds", "86400", link)
        else:
            self.cable()
        for i, (server, host) in enumerate(zip(self.servers, self.hosts)):
            place = "%s/%d" % (self.dir, i)
            os.mkdir(place)
            open(place + "/conf", "w").write(NGINX % {"d": place, "root": root, "address": host, "port": PORT})
            self.processes.append(subprocess.Popen(["ip", "netns", "exec", server, "nginx", "-c", place + "/conf", "-e", place + "/err"]))
        time.sleep(0.5)

    def cable(self):
        allowed = open("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read()      # a namespace may only choose from these
        if "cubic" not in allowed.split():
            sh("sysctl", "-qw", "net.ipv4.tcp_allowed_congestion_control=%s cubic" % allowed.strip())
        for namespace in [self.client_ns] + self.servers:
            sh("ip", "netns", "add", namespace)
            inside(namespace, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1", "net.ipv4.tcp_congestion_control=cubic")
        for i, server in enumerate(self.servers):
            near = "s%d" % (i + 1)
            sh("ip", "link", "add", near, "netns", self.client_ns, "type", "veth", "peer", "name", self.device, "netns", server)
            for namespace, device, end in ((self.client_ns, near, 1), (server, self.device, 2)):
                sh("ip", "-n", namespace, "addr", "add", "10.78.%d.%d/24" % (i + 1, end), "dev", device)
                sh("ip", "-n", namespace, "link", "set", device, "up")

    def shape(self, index, rate):
        """Limits each connection of mirror `index` to `rate` bytes of TCP payload per second; 0: no limit."""
        namespace = self.servers[index]
        subprocess.run(["ip", "netns", "exec", namespace, "tc", "qdisc", "del", "dev", self.device, "root"], stderr=subprocess.DEVNULL)
        if not self.wan:
            # One frame per packet, or htb would let 64 kB go at once.
            inside(namespace, "ip", "link", "set", self.device, "gso_max_segs", "1" if rate else "65535")
        if not rate:
            return
        burst = max(BURST_MIN, int(rate * BURST_S))
        lines = ["qdisc add dev %s root handle 1: htb" % self.device]
        for i in range(CLASSES):
            lines.append("class add dev %s parent 1: classid 1:%x htb rate %dbit burst %d cburst %d quantum 1514" % (
                self.device, i + 1, rate * 8 * WIRE, burst, burst))
            lines.append("filter add dev %s parent 1: protocol ip prio 1 u32 match ip dport 0x%x 0x%x classid 1:%x" % (
                self.device, 2 * i, 2 * (CLASSES - 1), i + 1))
        inside(namespace, "tc", "-batch", "-", input="\n".join(lines) + "\n")

    def choose(self, indexes, path):
        self.urls = ["http://%s/%s/" % (self.hosts[i], path) for i in indexes]

    def client(self, args):
        return ["ip", "netns", "exec", self.client_ns] + args

    def payload(self):
        """bytes of TCP payload that came to the client so far, over all links"""
        rows = [line.split(":") for line in inside(self.client_ns, "cat", "/proc/net/dev").splitlines()[2:]]
        counts = [figures.split() for device, figures in rows if device.strip() != "lo"]
        return sum(int(c[0]) - self.header_bytes * int(c[1]) for c in counts)

    def forget(self):
        """Empties the access logs; nginx appends to them."""
        for log in self.logs:
            os.truncate(log, 0)

    def take_down_links(self):
        if self.wan:
            subprocess.run([LAB + "/wan-down", NET], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for namespace in [self.client_ns] + self.servers:
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)

    def down(self):
        for process in self.processes:
            process.terminate()
            process.wait()
        self.take_down_links()
        shutil.rmtree(self.dir)
