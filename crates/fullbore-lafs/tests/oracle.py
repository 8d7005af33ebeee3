"""The stock code as oracle: shares and caps of files, orders of servers, secrets of leases, without a grid.

Reads requests as lines of JSON from stdin, answers each with one line:
  {"file", "k", "n", "segment", "secret" (hex or null), "v2"}  ->  {"cap", "shares": [sha256 in hex]}
      with "out", a directory: the shares are written there, named by their numbers
  {"servers": {id: announcement}, "index" (hex), "preferred": [id]}  ->  {"order": [id]}
  {"lease": {"id", "ann"}, "secret" (hex), "index" (hex)}  ->  {"renew", "cancel"} (hex)
  {"header": [data size, block size, segments, share hashes, extension size]}  ->  {"header": hex of version 2's}
Run by the Python of a venv with tahoe-lafs in it.
"""
import hashlib, json, sys

from zope.interface import implementer
from twisted.internet import defer
from allmydata import hashtree, uri
from allmydata.client import SecretHolder
from allmydata.immutable import encode, layout, upload
from allmydata.storage_client import HTTPNativeStorageServer, StorageFarmBroker
from allmydata.util import hashutil


class Bucket:
    """What a server would store of a share."""

    def __init__(self):
        self.bytes = bytearray()

    def callRemote(self, method, *arguments):
        if method == "write":
            offset, data = arguments
            assert offset == len(self.bytes)
            self.bytes += data
        return defer.succeed(None)


class Server:
    def get_name(self):
        return "server"

    def get_serverid(self):
        return b"server"


def encoded(request):
    secret = None if request["secret"] is None else bytes.fromhex(request["secret"])
    source = upload.FileName(request["file"], convergence=secret)
    source.set_default_encoding_parameters(
        {"k": request["k"], "happy": 1, "n": request["n"], "max_segment_size": request["segment"]})
    encrypted = upload.EncryptAnUploadable(source)
    encoder = encode.Encoder()
    buckets = [Bucket() for _ in range(request["n"])]
    result = []

    def allocate(_):
        # As Tahoe2ServerSelector and ServerTracker do it.
        count, sizes = encoder.get_param("num_segments"), encoder.get_param("share_size")
        hashes = len(hashtree.IncompleteHashTree(request["n"]).needed_hashes(0, include_leaf=True))
        make = layout.make_write_bucket_proxy
        writers = {i: make(bucket, Server(), sizes, encoder.get_param("block_size"), count, hashes,
                           encoder.get_uri_extension_size())
                   for i, bucket in enumerate(buckets)}
        encoder.set_shareholders(writers, {i: {b"%d" % i} for i in range(request["n"])})
        return encoder.start()

    layout.FORCE_V2 = bool(request.get("v2"))
    d = encoder.set_encrypted_uploadable(encrypted)
    d.addCallback(allocate)

    def key(verifier):
        return encrypted.get_uri() if hasattr(encrypted, "get_uri") else source.get_encryption_key().addCallback(
            lambda key: uri.CHKFileURI(key, verifier.uri_extension_hash, verifier.needed_shares,
                                       verifier.total_shares, verifier.size).to_string())

    d.addCallback(key)
    d.addBoth(result.append)
    # Everything here is synchronous, but for turns of the reactor that the encoder takes between segments.
    from twisted.internet import reactor
    while not result:
        reactor.iterate(0)
    if not isinstance(result[0], bytes):
        result[0].raiseException()
    for number, bucket in enumerate(buckets) if "out" in request else ():
        with open("%s/%d" % (request["out"], number), "wb") as share:
            share.write(bucket.bytes)
    return {"cap": result[0].decode(), "shares": [hashlib.sha256(b.bytes).hexdigest() for b in buckets]}


def header(numbers):
    return {"header": layout.WriteBucketProxy_v2(None, Server(), *numbers)._offset_data.hex()}


def storage_server(name, announcement):
    return HTTPNativeStorageServer(name.encode(), announcement, {"tcp": "tcp"})


class Broker:
    """What of the stock broker decides the order."""
    permute_peers = True
    get_servers_for_psi = StorageFarmBroker.get_servers_for_psi

    def __init__(self, servers, preferred):
        self.servers, self.preferred_peers = servers, preferred

    def get_connected_servers(self):
        return frozenset(self.servers)


def order(request):
    servers = [storage_server(name, ann) for name, ann in request["servers"].items()]
    broker = Broker(servers, [name.encode() for name in request["preferred"]])
    ordered = broker.get_servers_for_psi(bytes.fromhex(request["index"]), for_upload=True)
    return {"order": [server.get_longname().decode() for server in ordered]}


def lease(request):
    # As Tahoe2ServerSelector and ServerTracker do it.
    holder = SecretHolder(bytes.fromhex(request["secret"]), b"")
    index = bytes.fromhex(request["index"])
    seed = storage_server(request["lease"]["id"], request["lease"]["ann"]).get_lease_seed()
    renew = hashutil.file_renewal_secret_hash(holder.get_renewal_secret(), index)
    cancel = hashutil.file_cancel_secret_hash(holder.get_cancel_secret(), index)
    return {"renew": hashutil.bucket_renewal_secret_hash(renew, seed).hex(),
            "cancel": hashutil.bucket_cancel_secret_hash(cancel, seed).hex()}


for line in sys.stdin:
    request = json.loads(line)
    answer = (header(request["header"]) if "header" in request else order(request) if "servers" in request
              else lease(request) if "lease" in request else encoded(request))
    print(json.dumps(answer), flush=True)
