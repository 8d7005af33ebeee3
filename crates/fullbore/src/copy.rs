//! What `fullbore copy` is asked for besides a copy: to serve a far end, to tell where copies stand, or for help.

use std::fs::File;
use std::os::fd::AsFd as _;

use fullbore_copy::run::control::{self, Request, Status};
use fullbore_copy::server::{self, Server};
use fullbore_engine::run::error::ErrorKind;
use fullbore_engine::units;
use serde::Deserialize as _;
use serde_json::Value;

use crate::cli::CopyArgs;
use crate::progress::progress_text;
use crate::stdio;

/// Does what is no copy, if that is asked for; the result is the exit code.
pub fn instead(arguments: &CopyArgs) -> Option<u8> {
    if arguments.server {
        return Some(serve(arguments));
    }
    if arguments.status || arguments.set.is_some() {
        return Some(ask(arguments));
    }
    arguments.paths.is_empty().then(help)
}

/// Serves the near end that has started this program by ssh.
fn serve(arguments: &CopyArgs) -> u8 {
    let pipes = || Ok::<_, std::io::Error>((std::io::stdin().as_fd().try_clone_to_owned()?, stdio::stdout_file()?));
    let Ok((input, output)) = pipes() else { return ErrorKind::Internal.exit_code() };
    let input = File::from(input);
    if let Some(name) = &arguments.join {
        return server::join(name, input, output);
    }
    server::run(Server {
        input,
        output,
        home: std::env::var_os("HOME"),
        ssh_connection: std::env::var("SSH_CONNECTION").ok(),
        ports: arguments.reach.port,
        remove_self: arguments.remove_self,
        give_up: || std::process::exit(i32::from(ErrorKind::Network.exit_code())),
    })
}

/// Prints what `-h` alone asks for.
fn help() -> u8 {
    let mut command = crate::cli::command();
    command.build();
    if let Some(copy) = command.find_subcommand_mut("copy") {
        copy.render_help().to_string().lines().for_each(|line| {
            // Lost output is told at the end of the run.
            let _ = stdio::print_line(line);
        });
    }
    0
}

/// Talks to copies that run.
fn ask(arguments: &CopyArgs) -> u8 {
    let request = arguments.set.map_or(Request::Status, Request::Limit);
    match control::ask(&control::directory(), request, arguments.pid) {
        Ok(answers) => {
            for answer in answers {
                // Lost output is told at the end of the run.
                let _ = match arguments.json {
                    true => stdio::print_json(&answer),
                    false => stdio::print_line(&words(request, &answer)),
                };
            }
            0
        }
        Err(error) => {
            stdio::say_error(&error);
            error.exit_code()
        }
    }
}

/// The answer to a request as a person reads it.
fn words(request: Request, answer: &Value) -> String {
    let words = match request {
        Request::Status => Status::deserialize(answer).ok().map(|status| standing(&status)),
        Request::Limit(_) => answer["bwlimit_bytes_per_s"].as_u64().map(|rate| match rate {
            0 => format!("{}: no limit from now on", answer["pid"]),
            rate => format!("{}: at most {}/s from now on", answer["pid"], units::bytes(rate)),
        }),
    };
    words.unwrap_or_else(|| answer.to_string())
}

fn standing(status: &Status) -> String {
    let Status { pid, source, destination, .. } = status;
    let limit = match status.bwlimit_bytes_per_s {
        0 => String::new(),
        rate => format!(", at most {}/s", units::bytes(rate)),
    };
    format!("{pid}: {source} to {destination}: {}{limit}", progress_text(&status.progress))
}

#[cfg(test)]
mod tests {
    use fullbore_engine::run::Progress;
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_of_copies_are_sentences() {
        let progress = Progress {
            complete: Some(false),
            total_files: 3,
            limit: Some("the network".to_owned()),
            ..Progress::default()
        };
        let status = Status {
            pid: 7,
            source: "/srv".to_owned(),
            destination: "host:/backup".to_owned(),
            bwlimit_bytes_per_s: 5000,
            progress,
        };
        let status = serde_json::to_value(&status).unwrap();
        assert_eq!(
            words(Request::Status, &status),
            "7: /srv to host:/backup: 0 B so far, 0 of 3 files, 0 B/s, limited by the network, at most 5.00 kB/s"
        );
        let changed = |rate| words(Request::Limit(rate), &json!({"pid": 7, "bwlimit_bytes_per_s": rate}));
        assert_eq!(changed(0), "7: no limit from now on");
        assert_eq!(changed(5000), "7: at most 5.00 kB/s from now on");
        assert_eq!(words(Request::Status, &json!({"error": "x"})), r#"{"error":"x"}"#);
    }
}
