"""The stock encoder as oracle: shares and caps of files, without a grid.

Reads requests as lines of JSON from stdin, answers each with one line:
  {"file", "k", "n", "segment", "secret" (hex or null), "v2"}  ->  {"cap", "shares": [sha256 in hex]}
  {"header": [data size, block size, segments, share hashes, extension size]}  ->  {"header": hex of version 2's}
Run by the Python of a venv with tahoe-lafs in it.
"""
import hashlib, json, sys

from zope.interface import implementer
from twisted.internet import defer
from allmydata import hashtree, uri
from allmydata.immutable import encode, layout, upload


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
    return {"cap": result[0].decode(), "shares": [hashlib.sha256(b.bytes).hexdigest() for b in buckets]}


def header(numbers):
    return {"header": layout.WriteBucketProxy_v2(None, Server(), *numbers)._offset_data.hex()}


for line in sys.stdin:
    request = json.loads(line)
    answer = header(request["header"]) if "header" in request else encoded(request)
    print(json.dumps(answer), flush=True)
