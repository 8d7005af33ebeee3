//! Objects of other uploaders: whichever checksum a store has of them, and whatever their parts are.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_s3::{Algorithm, Hasher, md5_hex};

use super::faults::well;
use super::servers::{Client, Output, Server, content, moto, program, versitygw};
use super::store::{Fault, Object, Request, Store};

/// Puts a file in parts of these MiB, as boto3 does.
const UPLOADER: &str = r"
import sys, boto3
from botocore.config import Config
url, path, key, algorithm, sizes = sys.argv[1:]
client = boto3.client('s3', endpoint_url=url, region_name='us-east-1', aws_access_key_id='fullbore',
    aws_secret_access_key='only-for-tests', config=Config(s3={'addressing_style': 'path'}))
name = {'Bucket': 'bucket', 'Key': key}
upload = client.create_multipart_upload(ChecksumAlgorithm=algorithm, **name)['UploadId']
parts = []
with open(path, 'rb') as file:
    for number, size in enumerate(sizes.split('+'), 1):
        body = file.read(int(size) << 20)
        part = client.upload_part(UploadId=upload, PartNumber=number, Body=body, ChecksumAlgorithm=algorithm, **name)
        field = 'Checksum' + algorithm
        parts.append({'PartNumber': number, 'ETag': part['ETag'], field: part[field]})
client.complete_multipart_upload(UploadId=upload, MultipartUpload={'Parts': parts}, **name)
";

fn upload_by_boto3(server: &Server, path: &str, key: &str, algorithm: &str, sizes: &str) {
    let mut command = Command::new(program("moto/bin/python"));
    let done = command.args(["-c", UPLOADER, &server.url, path, key, algorithm, sizes]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn objects_of_boto3_are_recognised(server: &Server) {
    let client = Client::new(&server.url);
    let table = [
        ("SHA256", "5+4"),
        ("SHA256", "10+5+5"),
        ("SHA256", "6+7+5"),
        ("SHA256", "6+7+5+6"),
        ("SHA1", "5+4"),
        ("SHA1", "16+1"),
        ("CRC32", "6+7+5"),
        ("CRC32", "5+5+1"),
    ];
    for (number, (algorithm, sizes)) in table.into_iter().enumerate() {
        let size: usize = sizes.split('+').map(|size| size.parse::<usize>().unwrap() << 20).sum();
        let bytes = content(size, number as u64);
        let file = client.file("object", &bytes);
        let file = file.to_str().unwrap();
        let key = format!("{algorithm}-{sizes}");
        upload_by_boto3(server, file, &key, algorithm, sizes);
        let got = get(&client, &key, &["--require-checksum"]);
        assert_eq!((got.code, &got.summary()["store"]["verified"]), (0, &true.into()), "{key}: {}", got.stderr);
        assert!(std::fs::read(client.home.path().join("target")).unwrap() == bytes, "{key}");
        let put = client.run(["put", "--json", file, &format!("s3://bucket/{key}")]);
        assert_eq!((put.code, &put.summary()["store"]["present"]), (0, &1.into()), "{key}: {}", put.stdout);
    }
}

#[test]
fn intact_objects_of_boto3_are_verified_at_versitygw() {
    objects_of_boto3_are_recognised(&versitygw());
}

#[test]
fn intact_objects_of_boto3_are_verified_at_moto() {
    objects_of_boto3_are_recognised(&moto());
}

fn hash(algorithm: Algorithm, content: &[u8]) -> Vec<u8> {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(content);
    hasher.finish()
}

/// An object in these parts, with a checksum of them.
fn composite(algorithm: Algorithm, content: &[u8], parts: &[usize]) -> Object {
    let (mut sums, mut rest) = (Vec::new(), content);
    for part in parts {
        let (part, behind) = rest.split_at(*part);
        sums.extend(hash(algorithm, part));
        rest = behind;
    }
    let sum = STANDARD.encode(hash(algorithm, &sums));
    let count = parts.len();
    Object {
        content: content.to_vec(),
        etag: Some(format!("e-{count}")),
        checksum_fields: Some(format!("{}: {sum}-{count}\r\nx-amz-checksum-type: COMPOSITE\r\n", algorithm.field())),
        parts: parts.to_vec(),
        ..Object::default()
    }
}

/// An object in three parts, with a checksum of the whole.
fn full(algorithm: Algorithm, content: &[u8]) -> Object {
    let sum = STANDARD.encode(hash(algorithm, content));
    Object {
        content: content.to_vec(),
        etag: Some("e-3".into()),
        checksum_fields: Some(format!("{}: {sum}\r\nx-amz-checksum-type: FULL_OBJECT\r\n", algorithm.field())),
        ..Object::default()
    }
}

/// Gets an object into `target`, which is not there before.
fn get(client: &Client, key: &str, more: &[&str]) -> Output {
    let target = client.home.path().join("target");
    let _ = std::fs::remove_file(&target);
    let address = format!("s3://bucket/{key}");
    let mut arguments = vec!["get", "--json", "-o", target.to_str().unwrap(), &address];
    arguments.extend(more);
    let got = client.run(arguments);
    assert_eq!(target.exists(), got.code == 0, "{}", got.stderr);
    got
}

/// It is verified, recognised by `put`, and not when a byte of it is another.
fn is_certain(store: &Store, client: &Client, object: Object, what: &str) {
    let file = client.file("same", &object.content);
    store.put_object("object", object.clone());
    let got = get(client, "object", &["--require-checksum"]);
    assert_eq!((got.code, &got.summary()["store"]["verified"]), (0, &true.into()), "{what}: {}", got.stderr);
    let put = client.run(["put", "--json", file.to_str().unwrap(), "s3://bucket/object"]);
    assert_eq!((put.code, &put.summary()["store"]["present"]), (0, &1.into()), "{what}: {}", put.stdout);
    let mut damaged = object;
    *damaged.content.last_mut().unwrap() ^= 1;
    // Now the store's content is not what its checksum says, and the file is.
    let other = client.file("same", &damaged.content);
    store.put_object("object", damaged);
    let wrong = get(client, "object", &[]);
    assert_eq!(wrong.code, 4, "{what}: {}", wrong.stderr);
    let put = client.run(["put", "--json", other.to_str().unwrap(), "s3://bucket/object"]);
    assert_eq!((put.code, &put.summary()["store"]["files"]), (0, &1.into()), "{what}: {}", put.stdout);
}

/// It is written with a warning, unless a checksum is required, and `put` sends it.
fn is_unverified(store: &Store, client: &Client, object: &Object, what: &str) {
    let file = client.file("same", &object.content);
    store.put_object("object", object.clone());
    let got = get(client, "object", &[]);
    assert_eq!((got.code, &got.summary()["store"]["verified"]), (0, &false.into()), "{what}: {}", got.stderr);
    assert!(got.stderr.contains("warning: object: "), "{what}: {}", got.stderr);
    assert!(std::fs::read(client.home.path().join("target")).unwrap() == object.content, "{what}");
    let refused = get(client, "object", &["--require-checksum"]);
    assert_eq!(refused.code, 4, "{what}: {}", refused.stderr);
    let put = client.run(["put", "--json", file.to_str().unwrap(), "s3://bucket/object"]);
    assert_eq!((put.code, &put.summary()["store"]["files"]), (0, &1.into()), "{what}: {}", put.stdout);
}

#[test]
fn each_checksum_of_whole_or_parts_verifies_an_object() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let bytes = content(20_000, 1);
    for algorithm in Algorithm::ALL {
        is_certain(&store, &client, full(algorithm, &bytes), &format!("{algorithm:?}"));
        for parts in [&[12_000, 8000][..], &[10_000, 5000, 5000], &[6000, 7000, 7000], &[19_999, 1], &[20_000]] {
            is_certain(&store, &client, composite(algorithm, &bytes, parts), &format!("{algorithm:?} {parts:?}"));
        }
    }
    // More parts than are asked for at once, in several ranges.
    let large = content(17 << 20, 2);
    let mut parts = vec![100_000; 177];
    parts[3] = 200_001;
    parts.push(large.len() - parts.iter().sum::<usize>());
    is_certain(&store, &client, composite(Algorithm::Sha256, &large, &parts), "178 parts");
}

#[test]
fn parts_of_unknown_sizes_leave_an_object_unverified() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let bytes = content(20_000, 1);
    for algorithm in Algorithm::ALL {
        let object = Object { parts: Vec::new(), ..composite(algorithm, &bytes, &[12_000, 8000]) };
        is_unverified(&store, &client, &object, &format!("{algorithm:?}"));
    }
    // Parts as fullbore makes them are guessed, and a mismatch is no proof.
    let large = content(20 << 20, 2);
    let ours = Object { parts: Vec::new(), ..composite(Algorithm::Sha256, &large, &[8 << 20, 8 << 20, 4 << 20]) };
    store.put_object("object", ours);
    assert_eq!(get(&client, "object", &["--require-checksum"]).code, 0);
    let others = Object { parts: Vec::new(), ..composite(Algorithm::Sha256, &large, &[6 << 20, 6 << 20, 8 << 20]) };
    is_unverified(&store, &client, &others, "a guess");
}

#[test]
fn a_copy_with_the_checksum_of_its_sources_parts_was_called_corrupt() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let bytes = content(20_000, 1);
    for algorithm in [Algorithm::Sha256, Algorithm::Sha1, Algorithm::Crc32c, Algorithm::Crc32] {
        let sums = [hash(algorithm, &bytes[..12_000]), hash(algorithm, &bytes[12_000..])].concat();
        let sum = STANDARD.encode(hash(algorithm, &sums));
        let object = Object {
            content: bytes.clone(),
            etag: Some(md5_hex(&bytes)),
            checksum_fields: Some(format!("{}: {sum}\r\n", algorithm.field())),
            ..Object::default()
        };
        is_certain(&store, &client, object, &format!("{algorithm:?}"));
    }
}

#[test]
fn an_etag_alone_leaves_an_object_unverified() {
    let store = Store::start(well());
    let client = Client::new(&store.url);
    let object = |etag: &str| Object {
        content: content(5000, 1),
        etag: Some(etag.into()),
        checksum_fields: Some(String::new()),
        ..Object::default()
    };
    for etag in ["900150983cd24fb0d6963f7d28e17f72", "900150983cd24fb0d6963f7d28e17f72-2", "opaque", ""] {
        is_unverified(&store, &client, &object(etag), etag);
    }
    let value = "x-amz-checksum-crc32: no checksum\r\n";
    is_unverified(&store, &client, &Object { checksum_fields: Some(value.into()), ..object("e") }, value);
}

#[test]
fn sizes_of_parts_that_cannot_be_are_not_believed() {
    let bytes = content(20_000, 1);
    let answers = [
        (206, "Content-Range: bytes 0-9999/20000\r\nContent-Length: 10000\r\nx-amz-mp-parts-count: 4000000000\r\n"),
        (206, "Content-Range: bytes 0-9999/20001\r\nContent-Length: 10000\r\n"),
        (206, "Content-Range: bytes 0-18446744073709551614/20000\r\nContent-Length: 10000\r\n"),
        (200, "Content-Length: 0\r\n"),
        (200, "Content-Length: 20000\r\n"),
        (200, "Content-Length: 15000\r\n"),
        (200, "Content-Length: 18446744073709551615\r\n"),
        (400, ""),
        (403, ""),
        (404, ""),
        (416, ""),
        (501, ""),
    ];
    for (status, fields) in answers {
        let asks_for_part = |request: &Request| request.method == "HEAD" && request.query.contains("partNumber");
        let fields: &'static str = format!("ETag: \"e-3\"\r\n{fields}").leak();
        let store = Store::start(move |request| match asks_for_part(request) {
            true => Fault::Answer(status, fields, ""),
            false => Fault::None,
        });
        let client = Client::new(&store.url);
        store.put_object("object", composite(Algorithm::Sha256, &bytes, &[6000, 7000, 7000]));
        let got = get(&client, "object", &[]);
        assert_eq!(
            (got.code, &got.summary()["store"]["verified"]),
            (0, &false.into()),
            "{status} {fields}: {}",
            got.stderr
        );
        let asked = store.requests().iter().filter(|request| asks_for_part(request)).count();
        assert!(asked <= 2, "{status} {fields}: {asked} questions");
    }
    // As many parts as no object has.
    let store = Store::start(well());
    let client = Client::new(&store.url);
    for count in ["0", "10001", "4000000000", "99999999999999999999"] {
        let field = format!("x-amz-checksum-sha256: {}-{count}\r\n", STANDARD.encode([1; 32]));
        let object = Object { content: bytes.clone(), checksum_fields: Some(field), ..Object::default() };
        store.put_object("object", object);
        let got = get(&client, "object", &[]);
        assert_eq!((got.code, &got.summary()["store"]["verified"]), (0, &false.into()), "{count}: {}", got.stderr);
        assert!(store.requests().iter().all(|request| !request.query.contains("partNumber")), "{count}");
    }
}
