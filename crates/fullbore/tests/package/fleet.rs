//! The commands in packaging/fleet, in docs/guide/fleet.md and in the unit for workers: each flag and each variable exists.

use std::path::Path;

use fullbore::cli;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Values of the variables that stand in these commands.
fn value(name: &str) -> &str {
    match name {
        "run" | "RUN" | "2" => "9c1f",
        "1" => "s3://my-bucket/debian",
        "SLURM_ARRAY_TASK_ID" | "JOB_COMPLETION_INDEX" | "NOMAD_ALLOC_INDEX" | "i" => "3",
        "SLURM_ARRAY_TASK_COUNT" => "16",
        "QUEUE" => "tls://queue.example.org:4222",
        other => panic!("no value for the variable {other:?}"),
    }
}

/// Replaces `$NAME`, `${NAME}` and `$(NAME)`.
fn expanded(word: &str) -> String {
    let mut pieces = word.split('$');
    let mut text = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let is_bracketed = piece.starts_with(['(', '{']);
        let name = piece.trim_start_matches(['(', '{']);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        text += value(&name[..end]);
        text += &name[end + usize::from(is_bracketed)..];
    }
    text
}

/// Lines of a shell script or of blocks in a guide that run fullbore.
fn shell_commands(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.trim_start_matches(['#', ' ']));
    let command = |line: &str| {
        let at = ["fullbore mirror ", "fullbore work "].iter().find_map(|start| line.find(start))?;
        let is_command = at == 0 || line[..at].ends_with(['(', ' ', '/']);
        // What follows is a comment, or another command.
        let end = line[at..].find([')', '#', '&', ';']).map_or(line.len(), |end| at + end);
        // A sentence has fullbore between backquotes.
        (is_command && !line[..at].contains('`')).then(|| line[at..end].to_owned())
    };
    let words = |line: String| line.split_whitespace().map(|word| expanded(&word.replace('"', ""))).collect();
    lines.filter_map(command).map(words).collect()
}

/// Arrays after `args`, `command` and the like, which are JSON as well as YAML and HCL.
fn listed_commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for (at, _) in text.match_indices('[') {
        let Some(end) = text[at..].find(']') else { continue };
        let Ok(words) = serde_json::from_str::<Vec<String>>(&text[at..=at + end]) else { continue };
        if words.first().is_some_and(|word| ["mirror", "work"].contains(&word.as_str())) {
            let words = words.iter().map(|word| expanded(word));
            commands.push(std::iter::once("fullbore".to_owned()).chain(words).collect());
        }
    }
    commands
}

/// Words that begin with `FULLBORE_` and are followed by a value.
fn variables(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let begin = |(at, _): (usize, &str)| {
        let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
        let is_whole = !text[..at].ends_with(|c: char| is_name(c) || c == '{' || c == '$');
        is_whole.then_some(name)
    };
    text.match_indices("FULLBORE_").filter_map(begin).collect()
}

/// Passwords of packaging/nats/permissions.conf, which the server reads.
const OF_THE_QUEUE: [&str; 2] = ["FULLBORE_PLANNER_PASSWORD", "FULLBORE_WORKER_PASSWORD"];

#[test]
fn commands_for_fleets_have_only_flags_and_variables_that_exist() {
    for (name, commands_min) in [
        ("packaging/fleet/kubernetes-shards.yaml", 3),
        ("packaging/fleet/kubernetes-queue.yaml", 1),
        ("packaging/fleet/compose.yaml", 2),
        ("packaging/fleet/shards.sbatch", 3),
        ("packaging/systemd/fullbore-work@.service", 1),
        ("docs/guide/fleet.md", 10),
    ] {
        let text = text(name);
        let commands = [shell_commands(&text), listed_commands(&text)].concat();
        assert!(commands.len() >= commands_min, "{name}: {commands:?}");
        for command in &commands {
            if let Err(error) = cli::parse(command) {
                panic!("{name}: {command:?}: {error}");
            }
        }
        let unknown = cli::unknown_variables(&variables(&text));
        let unknown: Vec<&String> =
            unknown.iter().filter(|warning| !OF_THE_QUEUE.iter().any(|name| warning.contains(name))).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
}

#[test]
fn commands_are_found_where_they_stand() {
    let found = shell_commands("# see `fullbore work --help`\n    run=$(fullbore mirror a \\\n   --pin)   # plans\n");
    assert_eq!(found, [["fullbore", "mirror", "a", "--pin"]]);
    assert_eq!(shell_commands("exec fullbore work \"$1\" --shard \"${i}/4\" & x")[0][3..], ["--shard", "3/4"]);
    assert_eq!(listed_commands("args: [\"work\", \"$(RUN)\"]\nx: [\"a\"]"), [["fullbore", "work", "9c1f"]]);
    assert_eq!(variables("a: FULLBORE_X=1 ${FULLBORE_Y:?} XFULLBORE_Z"), ["FULLBORE_X"]);
}
