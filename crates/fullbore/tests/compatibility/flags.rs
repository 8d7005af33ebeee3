//! Flags, as scripts and units have them.

use fullbore::cli;

use crate::fixture_text;

/// The flag of a line `COMMAND --flag`, and whether this version has it.
fn find<'a>(root: &'a clap::Command, line: &str) -> Option<&'a clap::Arg> {
    let (words, flag) = line.rsplit_once(' ').unwrap();
    let mut names = words.split(' ').filter(|word| *word != "fullbore");
    let command = names.try_fold(root, |command, name| command.find_subcommand(name));
    command?.get_arguments().find(|argument| is(argument, flag))
}

fn is(argument: &clap::Arg, flag: &str) -> bool {
    match flag.strip_prefix("--") {
        Some(name) => {
            argument.get_long() == Some(name) || argument.get_all_aliases().unwrap_or_default().contains(&name)
        }
        None => {
            let name = flag.chars().nth(1).unwrap();
            argument.get_short() == Some(name) || argument.get_all_short_aliases().unwrap_or_default().contains(&name)
        }
    }
}

/// Hidden ones included: one that was renamed keeps its old name as an alias.
#[test]
fn every_flag_of_the_older_version_is_taken() {
    let mut root = cli::command();
    root.build();
    let text = fixture_text("flags.txt");
    let missing: Vec<_> = text.lines().filter(|line| find(&root, line).is_none()).collect();
    assert!(text.lines().count() > 300, "the fixture is in order");
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn every_word_that_a_flag_of_the_older_version_took_is_taken() {
    let mut root = cli::command();
    root.build();
    let text = fixture_text("flag-values.txt");
    let is_taken = |line: &&str| {
        let (flag, word) = line.rsplit_once(' ').unwrap();
        let values = find(&root, flag).map(clap::Arg::get_possible_values).unwrap_or_default();
        // A flag that takes any word takes this one.
        find(&root, flag).is_some() && (values.is_empty() || values.iter().any(|value| value.matches(word, false)))
    };
    assert!(text.lines().count() > 50, "the fixture is in order");
    assert_eq!(text.lines().filter(|line| !is_taken(line)).collect::<Vec<_>>(), [] as [&str; 0]);
}

/// The command lines of units of systemd.
#[test]
fn the_units_of_the_older_package_run_this_version() {
    let unit = fixture_text("fullbore-mirror@.service");
    let commands: Vec<_> = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
    assert_eq!(commands.len(), 1, "the fixture is in order");
    let line = commands[0].replace("%i", "debian");
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("/usr/bin/fullbore"), "where packages have it");
    let parsed = cli::parse(["fullbore"].into_iter().chain(words)).map_err(|error| error.to_string()).unwrap();
    let cli::Command::Mirror(arguments) = parsed.command else { panic!("not mirror") };
    assert_eq!(arguments.names, ["debian"]);
    let written = [arguments.output.metrics, arguments.output.report].map(|path| path.unwrap().display().to_string());
    assert_eq!(written, ["/var/lib/fullbore/debian.prom", "/var/lib/fullbore/debian.html"]);
    // What its comment says of /etc/default/fullbore.
    assert!(unit.contains("FULLBORE_LIMIT_RATE=20M"), "the fixture is in order");
    let root = cli::command();
    let mut flags = root.find_subcommand("mirror").unwrap().get_arguments();
    let limit = flags.find(|flag| flag.get_long() == Some("limit-rate")).unwrap();
    assert_eq!(limit.get_env(), Some("FULLBORE_LIMIT_RATE".as_ref()));
    // The timer is started by its name, which names the service.
    assert!(fixture_text("fullbore-mirror@.timer").contains("[Timer]"), "the fixture is in order");
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for name in ["fullbore-mirror@.service", "fullbore-mirror@.timer"] {
        assert!(packaging.join(name).exists(), "{name}: a unit that is enabled would be gone");
    }
}
