//! The policy of docs/guide/fleet.md is enough for a planner and for workers, and lets workers do nothing else.

use super::*;

const PLANNER: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "planner"), ("AWS_SECRET_ACCESS_KEY", "plans-only")];
const WORKER: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "worker"), ("AWS_SECRET_ACCESS_KEY", "works-only")];

/// The guide's policy, for the bucket of the tests.
fn policy() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/fleet.md");
    let guide = fs::read_to_string(path).unwrap();
    let block = guide.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    let policy = block.expect("a policy in the guide");
    assert!(policy.contains("arn:aws:s3:::my-bucket/debian/pool/*"), "{policy}");
    policy.replace("my-bucket", "bucket")
}

/// A store with two users, and a bucket with the guide's policy.
fn store() -> servers::Server {
    let store = servers::versitygw_with_users();
    for [(_, access), (_, secret)] in [PLANNER, WORKER] {
        let mut command = Command::new(servers::program("versitygw"));
        command.args(["admin", "--access", "fullbore", "--secret", "only-for-tests", "--endpoint-url", &store.url]);
        command.args(["create-user", "--access", access, "--secret", secret, "--role", "user"]);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let script = "
import boto3, sys
client = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1',
                      aws_access_key_id='fullbore', aws_secret_access_key='only-for-tests')
client.create_bucket(Bucket='bucket')
client.put_bucket_policy(Bucket='bucket', Policy=sys.argv[2])";
    let mut command = Command::new(servers::program("moto/bin/python"));
    let done = command.args(["-c", script, &store.url, &policy()]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    store
}

fn user(store: &servers::Server, keys: [(&'static str, &'static str); 2]) -> Bucket {
    Bucket { keys: keys.to_vec(), ..Bucket::at(&store.url) }
}

fn work(worker: &Bucket, more: &[&str]) -> Ran {
    let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["work", TO, "--endpoint", &worker.endpoint]).args(more).envs(worker.keys.iter().copied());
    worker.mirror.finish(command)
}

#[test]
fn planner_and_workers_need_no_more_than_the_policy_of_the_guide() {
    let store = store();
    let (planner, worker) = (user(&store, PLANNER), user(&store, WORKER));
    planner.run(&served(0), &[]).exits(0);
    assert_eq!(visible(&data(&store)), Some(0));

    // A worker stores packages of a plan. It publishes nothing, and lists nothing else.
    let mirror = served(1);
    let run = planner.run(&mirror, &["--pin"]).exits(0).stdout.trim().to_owned();
    let before = contents(&data(&store));
    work(&worker, &["--run", &run, "--shard", "0/1"]).exits(0);
    let after = contents(&data(&store));
    let added: Vec<&String> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    assert!(added.len() > 3 && added.iter().all(|path| path.starts_with("pool/")), "{added:?}");
    assert_eq!(visible(&data(&store)), Some(0));

    // Nothing is left for the planner but indexes, old packages go, and it publishes.
    let requests = mirror.counters().requests;
    let flags = ["--keep-generations", "1", "--keep-hours", "0", "--force-delete", "--finish", &run];
    planner.run(&mirror, &flags).exits(0);
    assert_eq!(visible(&data(&store)), Some(1));
    let fetched: Vec<String> = mirror.log().into_iter().skip(requests as usize).map(|entry| entry.path).collect();
    assert!(!fetched.iter().any(|path| path.contains("/pool/")), "{fetched:?}");

    // A worker cannot publish. Reading the state is refused first.
    let stranger = served(0);
    let refused = worker.run(&stranger, &[]);
    assert!(refused.code == Some(1) && refused.stderr.contains("403"), "{refused:?}");
    assert_eq!(visible(&data(&store)), Some(1));
}
