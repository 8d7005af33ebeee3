//! `debmirror.conf`: a perl script that assigns. Plain assignments are read, the rest is named.

use std::collections::BTreeMap;

use super::{ConvertedMirror, Draft, names, without_installer};

/// Longest list or string read.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// One assignment.
struct Assignment {
    line: usize,
    values: Vec<String>,
}

pub(super) fn convert(text: &str) -> Draft {
    let mut draft = Draft::default();
    let mut settings: BTreeMap<String, Assignment> = BTreeMap::new();
    // The line of the first statement that does something else than to assign.
    let mut code: Option<usize> = None;
    for (line, statement) in statements(text) {
        match statement.as_str() {
            "1" => continue,
            "return 1" => break,
            _ => {}
        }
        let Some((name, values)) = assignment(&statement) else {
            draft.note(line, &statement, "not a plain assignment; debmirror's file is perl and is not executed");
            // Another assignment within it would be code.
            match assigned(&statement).filter(|_| statement.matches('=').count() == 1) {
                Some(name) if code.is_none() => drop(settings.remove(name)),
                _ => drop(code.get_or_insert(line)),
            }
            continue;
        };
        let is_new = !settings.contains_key(&name);
        if let Some(code) = code {
            draft.note_doubtful(line, &statement, code, is_new);
        }
        if is_new || code.is_none() {
            settings.insert(name, Assignment { line, values });
        }
    }
    let list =
        |name: &str| -> Vec<String> { settings.get(name).map(|setting| setting.values.clone()).unwrap_or_default() };
    let text_of = |name: &str| list(name).into_iter().next().filter(|value| !value.is_empty());
    let is =
        |name: &str, default: bool| list(name).first().map_or(default, |value| !matches!(value.as_str(), "" | "0"));
    let separated = |name: &str, default: &str| -> Vec<String> {
        let values = list(name);
        if values.iter().all(String::is_empty) { names(default) } else { names(&values.join(",")) }
    };
    let line_of = |name: &str| settings.get(name).map_or(1, |setting| setting.line);

    let method = text_of("$download_method").unwrap_or_else(|| "ftp".to_owned());
    let host = text_of("$host").unwrap_or_else(|| {
        draft.note(1, "no $host", "write the address of your mirror into `from`");
        "mirror.invalid".to_owned()
    });
    let root = text_of("$remoteroot").unwrap_or_else(|| "debian".to_owned());
    let root = root.trim_matches(['/', ':']).to_owned();
    let scheme = if method == "https" { "https" } else { "http" };
    if !matches!(method.as_str(), "http" | "https") {
        draft.note(
            line_of("$download_method"),
            format!("$download_method={method}"),
            "fullbore speaks http and https; look whether the same host offers them",
        );
    }

    let mut section =
        ConvertedMirror { name: draft.free_name(root.rsplit('/').next().unwrap_or("")), ..ConvertedMirror::default() };
    section.comment("The tree of debmirror is taken over: files that are right are not fetched again.");
    section.text("from", format!("{scheme}://{host}/{root}").trim_end_matches('/'));
    section.list("suite", &separated("@dists", "sid"));
    let (components, udebs) =
        without_installer(separated("@sections", "main,main/debian-installer,contrib,non-free,non-free-firmware"));
    section.list("component", &components);
    let mut architectures: Vec<String> =
        separated("@arches", "i386").into_iter().filter(|name| name != "none").collect();
    if !architectures.is_empty() && !architectures.iter().any(|name| name == "all") {
        architectures.push("all".to_owned());
    }
    if is("$do_source", true) && !architectures.iter().any(|name| name == "source") {
        architectures.push("source".to_owned());
    }
    section.list("arch", &architectures);
    match text_of("$mirrordir") {
        Some(directory) => section.text("to", directory),
        None => {
            section.comment("$mirrordir was not set: name the directory here.");
            section.text("to", "/srv/mirror/debian");
        }
    }
    kinds(&mut section, udebs, |name| is(name, false), !list("@di_dists").is_empty(), text_of("$diff_mode"));
    let excludes = patterns(&mut draft, line_of("@excludes"), "@excludes", list("@excludes"));
    let includes = patterns(&mut draft, line_of("@includes"), "@includes", list("@includes"));
    section.list("exclude", &excludes);
    if excludes.is_empty() && !includes.is_empty() {
        draft.note(line_of("@includes"), "@includes", "without @excludes it does nothing in debmirror; left out");
    } else {
        section.list("include", &includes);
    }
    let priorities = list("@limit_priority");
    if priorities.iter().all(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase())) {
        section.list("priority", &priorities);
    } else if !priorities.is_empty() {
        draft.note(
            line_of("@limit_priority"),
            "@limit_priority",
            "patterns are not supported; list names in `priority`",
        );
    }
    section.list("keyring", &list("@keyrings"));
    if is("$no_cleanup", false) || !(is("$post_cleanup", true) || is("$cleanup", false) || is("$pre_cleanup", false)) {
        section.on("no-clean");
    } else {
        section.comment("debmirror deletes every file it does not know; fullbore does with `clean-foreign = true`.");
    }
    if is("$ignore_small_errors", false) {
        section.on("ignore-missing");
    }
    if !is("$check_gpg", true) || is("$ignore_release_gpg", false) {
        section.comment("debmirror does not verify signatures here. If the archive has none: trusted = true");
    }
    for (name, setting) in &settings {
        if let Some(reason) = reason(name) {
            draft.note(setting.line, format!("{name} = {}", setting.values.join(", ")), reason);
        }
    }
    draft.mirrors.push(section);
    draft
}

/// What debmirror leaves out by default and fullbore does not.
fn kinds(
    section: &mut ConvertedMirror,
    udebs: bool,
    is: impl Fn(&str) -> bool,
    installer: bool,
    diff_mode: Option<String>,
) {
    let mut without = Vec::new();
    for (left_out, kind) in [
        (!installer, "installer"),
        (!udebs, "udeb"),
        (!is("$getcontents"), "contents"),
        (!is("$i18n"), "translations"),
        (diff_mode.as_deref() != Some("mirror"), "pdiff"),
    ] {
        if left_out {
            without.push(kind.to_owned());
        }
    }
    section.list("without", &without);
}

/// Patterns that our regular expressions take, too; perl's look-around is named.
fn patterns(draft: &mut Draft, line: usize, name: &str, values: Vec<String>) -> Vec<String> {
    let mut taken = Vec::new();
    for value in values.into_iter().filter(|value| !value.is_empty()) {
        match value.parse::<fullbore_mirror::Filter>() {
            // debmirror matches against the path with a slash in front.
            Ok(_) => taken.push(value.strip_prefix("^/").map(|rest| format!("^{rest}")).unwrap_or(value)),
            Err(_) => draft.note(line, format!("{name} {value}"), "a pattern that only perl understands"),
        }
    }
    taken
}

/// Why a setting is not taken over; `None` if it is.
fn reason(name: &str) -> Option<&'static str> {
    Some(match name {
        "$mirrordir"
        | "$host"
        | "$remoteroot"
        | "$download_method"
        | "@dists"
        | "@sections"
        | "@arches"
        | "$do_source"
        | "@excludes"
        | "@includes"
        | "@limit_priority"
        | "@keyrings"
        | "$getcontents"
        | "$i18n"
        | "$diff_mode"
        | "$post_cleanup"
        | "$pre_cleanup"
        | "$cleanup"
        | "$no_cleanup"
        | "$check_gpg"
        | "$ignore_release_gpg"
        | "$ignore_small_errors" => {
            return None;
        }
        "$verbose" | "$progress" | "$debug" => "not needed: see --quiet and --verbose",
        "$user" | "$passwd" => "put credentials into apt's auth.conf",
        "$proxy" => "set http_proxy and https_proxy in the environment (of the service)",
        "$timeout" => "not needed: fullbore detects slow and silent hosts",
        "$dry_run" => "use --dry-run",
        "$check_md5sums" | "$verify_checksums" => {
            "every file is verified as it arrives; re-read all with `fullbore check`"
        }
        "$state_cache_days" => "not needed: fullbore records the files that it wrote",
        "$debmarshal" => "use --snapshot NAME",
        "$omit_suite_symlinks" => "the symlink from suite to codename is always made",
        "$allow_dist_rename" => "not needed: the real directory is always the codename",
        "$ignore_missing_release" | "$ignore_release" => {
            "not offered: fullbore verifies everything against the signed Release"
        }
        "$skippackages" => "has no counterpart",
        "$max_batch"
        | "$rsync_batch"
        | "$rsync_options"
        | "$rsync_extra"
        | "@rsync_extra"
        | "$passive"
        | "$retry_rsync_packages"
        | "$retry_rsync_packages_delay"
        | "$gzip_options"
        | "$slow_cpu" => "belongs to transports that fullbore does not use",
        "$disable_ssl_verification" => "not offered; trust your certificate with `cacert`",
        "@ignores" => "files that fullbore did not place are not deleted anyway",
        "@excludes_deb_section" => "has no counterpart; `section` names the wanted ones",
        "@di_dists" | "@di_arches" | "@di_archs" => {
            "fullbore mirrors installer images with the suites and architectures of the section"
        }
        "%excludes_field" | "%includes_field" => "has no counterpart",
        _ => "unknown to fullbore",
    })
}

/// Words that begin a block: it ends at its brace, without a semicolon.
const BLOCKS: &[&str] =
    &["if", "unless", "elsif", "else", "for", "foreach", "while", "until", "sub", "package", "BEGIN", "END"];

/// The statements of a perl file, with the line each begins in. Comments are left out; a block is one statement with all in it.
fn statements(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut statement = String::new();
    let (mut begin, mut line) = (1, 1);
    let mut quote = None;
    // Braces, parentheses, and whether the outer braces are those of a block.
    let (mut depth, mut parentheses, mut is_block) = (0, 0, false);
    let text = without_documentation(text);
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        line += usize::from(c == '\n');
        if let Some(end) = quote {
            statement.push(c);
            if c == '\\' {
                statement.extend(letters.next());
            } else if c == end {
                quote = None;
            }
            continue;
        }
        match c {
            // A delimiter, as in `s#a#b#`, or `$#list`: what the rest of the line is, only perl can tell.
            '#' if statement.ends_with(|c: char| c.is_alphanumeric() || c == '$') => {
                statement.push(c);
                statement.extend(letters.by_ref().take_while(|c| *c != '\n'));
                line += 1;
                found.push((begin, std::mem::take(&mut statement)));
                (depth, parentheses) = (0, 0);
                continue;
            }
            '#' => {
                letters.by_ref().find(|c| *c == '\n');
                line += 1;
                if !statement.is_empty() {
                    statement.push(' ');
                }
                continue;
            }
            ';' if depth == 0 => {
                parentheses = 0;
                found.push((begin, std::mem::take(&mut statement).trim().to_owned()));
                continue;
            }
            c if statement.is_empty() && c.is_whitespace() => continue,
            '"' | '\'' => quote = Some(c),
            '(' | '/' | '[' | '{' if quotes_words(&statement) => {
                let close = ['(', '/', '[', '{'].iter().zip([')', '/', ']', '}']).find(|(open, _)| **open == c);
                statement.push(c);
                for inside in letters.by_ref() {
                    line += usize::from(inside == '\n');
                    statement.push(inside);
                    if close.is_some_and(|(_, close)| inside == close) {
                        break;
                    }
                }
                continue;
            }
            '(' => parentheses += 1,
            ')' => parentheses = (parentheses - 1).max(0),
            '{' if parentheses == 0 => {
                is_block = if depth == 0 { begins_block(&statement) } else { is_block };
                depth += 1;
            }
            '}' if parentheses == 0 && depth > 0 => depth -= 1,
            _ => {}
        }
        if statement.is_empty() {
            begin = line;
        }
        statement.push(c);
        if c == '}' && parentheses == 0 && depth == 0 && std::mem::take(&mut is_block) {
            found.push((begin, std::mem::take(&mut statement)));
        }
    }
    found.push((begin, statement.trim().to_owned()));
    found.retain(|(_, statement)| !statement.is_empty());
    found
}

/// Whether words in quotes of their own follow: `qw`.
fn quotes_words(statement: &str) -> bool {
    let before = statement.trim_end().strip_suffix("qw");
    before.is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '@' | '%')))
}

/// Whether a brace after this begins a block.
fn begins_block(statement: &str) -> bool {
    let word: String = statement.chars().take_while(char::is_ascii_alphanumeric).take(16).collect();
    statement.is_empty() || BLOCKS.contains(&word.as_str())
}

/// The name that a statement assigns, if it has no code besides: then it is known at least that earlier values do not hold.
fn assigned(statement: &str) -> Option<&str> {
    let (name, value) = statement.split_once('=')?;
    let name = name.trim();
    let name = name.strip_prefix("our ").unwrap_or(name).trim();
    (is_name(name) && !value.contains("<<") && !value.starts_with(['=', '~', '>'])).then_some(name)
}

/// Whether this is a plain variable of perl.
fn is_name(text: &str) -> bool {
    text.strip_prefix(['$', '@', '%']).is_some_and(|plain| {
        !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// Without what perl does not read: pod (perlpod(1)), and all after `__END__`. Lines keep their numbers.
fn without_documentation(text: &str) -> String {
    let mut is_pod = false;
    let mut code = String::with_capacity(text.len());
    for line in text.lines().take_while(|line| !matches!(line.trim_end(), "__END__" | "__DATA__")) {
        let is_command = line.strip_prefix('=').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
        if !is_pod && !is_command {
            code.push_str(line);
        }
        code.push('\n');
        let is_end = line.strip_prefix("=cut").is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()));
        is_pod = if is_pod { !is_end } else { is_command };
    }
    code
}

/// `$name = value` or `@name = (values)`; `None` for all else.
fn assignment(statement: &str) -> Option<(String, Vec<String>)> {
    let name = assigned(statement)?;
    let (_, value) = statement.split_once('=')?;
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let values = values(value.trim())?;
    // Perl takes the last value of a list for a scalar, and the first of several without parentheses for an array.
    let is_list = !name.starts_with('$') && (value.trim_start().starts_with(['(', 'q']));
    (values.len() == 1 || is_list).then(|| (name.to_owned(), values))
}

/// A number, a string, a list of them, or `qw(…)`.
fn values(text: &str) -> Option<Vec<String>> {
    if let Some(words) = text.strip_prefix("qw") {
        let words = words.trim();
        let inside = [('(', ')'), ('/', '/'), ('[', ']'), ('{', '}')].into_iter().find_map(|(open, close)| {
            words.strip_prefix(open)?.strip_suffix(close).filter(|inside| !inside.contains([open, close]))
        })?;
        return Some(inside.split_whitespace().map(str::to_owned).collect());
    }
    let text = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let mut values = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let value;
        (value, rest) = one_value(rest)?;
        values.push(value);
        rest = rest.trim_start();
        match rest.strip_prefix(',').or_else(|| rest.strip_prefix("=>")) {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => {}
            None => return None,
        }
    }
    Some(values)
}

/// The value at the beginning and what follows it. Strings that perl would fill in
/// (`"$ENV{HOME}/mirror"`) are not plain.
fn one_value(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    if !matches!(quote, '"' | '\'') {
        let end = text.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let number = word.strip_prefix('-').unwrap_or(word);
        return (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
            .then(|| (word.to_owned(), rest));
    }
    let mut value = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, c)) = letters.next() {
        match c {
            c if c == quote => return Some((value, &text[at + c.len_utf8()..])),
            '\\' => match letters.next()? {
                (_, escaped) if escaped == quote || escaped == '\\' => value.push(escaped),
                (_, escaped) if quote == '"' && !escaped.is_alphanumeric() => value.push(escaped),
                (_, _) if quote == '"' => return None,
                (_, other) => value.extend(['\\', other]),
            },
            // A dollar at the end is a dollar; perl fills in all others.
            '$' if quote == '"' && !text[at + 1..].starts_with('"') => return None,
            '@' if quote == '"' => {
                let next = text[at + 1..].chars().next()?;
                if next.is_alphanumeric() || matches!(next, '_' | '{' | ':' | '$') {
                    return None;
                }
                value.push(c);
            }
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ForeignFormat;

    #[test]
    fn a_usual_file_of_debmirror_is_converted() {
        let text = r#"
# Default config for debmirror
$mirrordir="/srv/mirror/debian";
$verbose=0; $progress = 1;
$host="deb.example.org";
$user="anonymous@example.org";  # a comment
$remoteroot="/debian";
$download_method="http";
@dists="trixie,trixie-updates";
@sections="main,main/debian-installer,contrib";
@arches=qw(amd64 arm64);
@excludes=('-dbg(sym)?_.*\.deb$', "^/pool/main/l/linux", '(?<!foo)bar');
@includes = ( "linux-doc" );
@limit_priority=();
$i18n=1;
$getcontents=0;
$do_source=0;
@keyrings=("/usr/share/keyrings/debian-archive-keyring.gpg");
$proxy="http://proxy:3128/";
$diff_mode="use";
$rsync_options="-aIL --partial";
if (-e "/etc/x") { $host = "other"; }
$mirrordir="$ENV{HOME}/mirror";
1;
"#;
        insta::assert_snapshot!(
            crate::convert::convert(ForeignFormat::Debmirror, text)
                .unwrap()
                .render("debmirror.conf", ForeignFormat::Debmirror)
        );
    }

    fn found(text: &str) -> (impl Fn(&str) -> Option<String> + use<>, Vec<usize>) {
        let draft = convert(text);
        let values = draft.mirrors[0].values.clone();
        let find = move |key: &str| values.iter().find(|(name, _)| *name == key).map(|(_, value)| value.to_string());
        (find, draft.notes.iter().map(|note| note.line).collect())
    }

    #[test]
    fn nothing_within_a_block_or_pod_is_a_setting() {
        let text = "$host='a';\n=pod\n\n$host='f';\n\n=cut\n$remoteroot='debian';\n$download_method='http';\n\
                    if (defined $ENV{X} && @{$y}) {\n  $host='b'; $remoteroot='inside';\n}\n@arches=qw{amd64};\n\
                    sub f { if (1) { $host='c'; } }\nunless (0) { $host='d' }\n{ $host='e'; }\n1;\n__END__\n$host='g';\n";
        let (find, notes) = found(text);
        assert_eq!(find("from").as_deref(), Some("\"http://a/debian\""));
        assert_eq!(find("arch").as_deref(), Some("[\"amd64\", \"all\", \"source\"]"));
        assert_eq!(notes, [9, 12, 13, 14, 15], "that arches stand behind code is noted as well");
    }

    #[test]
    fn a_value_that_code_may_change_is_noted_and_replaces_nothing() {
        for code in ["if (1) { }", "push @x, 1;", "require 'x';", "$m = <<EOF;", "do { 1 };"] {
            let (find, notes) =
                found(&format!("$host='a'; $download_method='http';\n{code}\n$host='b';\n@dists='sid';\n"));
            assert_eq!(find("from").as_deref(), Some("\"http://a/debian\""), "{code}");
            assert_eq!(find("suite").as_deref(), Some("\"sid\""), "{code}");
            assert_eq!(notes, [2, 3, 4], "{code}");
        }
        for code in ["my $y = 1;", "$x = $y = 'b';", "$x == 1 and die;", "$x =~ s#^/##;", "$x = do { $y='b' };"] {
            let (find, notes) =
                found(&format!("$host='a'; $download_method='http';\n{code}\n$host='b';\n@dists='sid';\n"));
            assert_eq!((find("from").as_deref(), notes), (Some("\"http://a/debian\""), vec![2, 3, 4]), "{code}");
        }
        let (find, notes) = found("$host='a'; $download_method='http'; return 1; $host='b';\n");
        assert_eq!((find("from").as_deref(), notes.len()), (Some("\"http://a/debian\""), 0));
        let (find, notes) = found("$host='a'; $host=\"$x\"; $download_method='http';\n");
        assert_eq!((find("from").as_deref(), notes.len()), (Some("\"http://mirror.invalid/debian\""), 2));
    }

    #[test]
    fn each_architecture_is_named_once() {
        let text = "$host='x'; @arches=('all,amd64,source,i386');\n";
        let settings = convert(text).mirrors.remove(0);
        let arch = settings.values.iter().find(|(name, _)| *name == "arch").unwrap().1.to_string();
        assert_eq!(arch, r#"["all", "amd64", "source", "i386"]"#);
    }

    #[test]
    fn small_errors_are_ignored_if_debmirror_does() {
        for (value, ignored) in [("1", true), ("0", false)] {
            let settings = convert(&format!("$host='x'; $download_method='http'; $ignore_small_errors={value};\n"));
            assert_eq!(settings.notes.len(), 0, "{value}");
            let names: Vec<_> = settings.mirrors[0].values.iter().map(|(name, _)| *name).collect();
            assert_eq!(names.contains(&"ignore-missing"), ignored, "{names:?}");
        }
    }

    #[test]
    fn values_are_plain_or_nothing() {
        assert_eq!(values("( \"a\", 'b', 3, )"), Some(vec!["a".into(), "b".into(), "3".into()]));
        assert_eq!(values("qw(a b)"), Some(vec!["a".into(), "b".into()]));
        assert_eq!(values(r#""a\"b\\.c$""#), Some(vec![r#"a"b\.c$"#.into()]));
        assert_eq!(values(r#"'a\.b$'"#), Some(vec![r"a\.b$".into()]));
        for text in ["`id`", "\"$x\"", "f()", "\"a\" . \"b\"", "\"unclosed", "a"] {
            assert_eq!(values(text), None, "{text}");
        }
    }
}
