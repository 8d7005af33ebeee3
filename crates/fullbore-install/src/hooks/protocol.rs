//! mmdebstrap's protocol between a hook and the program outside: files and archives over a socket.
//!
//! In a user namespace a hook may not reach files of its user. [`helper`] runs in the hook and works on the root;
//! [`listener`] runs outside and reads and writes the user's files. A message has the length of its content, a word of
//! five letters, and the content:
//!
//! ```text
//! helper    openr PATH   read a file                      listener   okthx, write CONTENT…, close
//!           mktar PATH   archive a file or directory
//!           mktac PATH   archive the content of a directory
//!           openw PATH   write a file          helper     write CONTENT…, close
//!           untar PATH   unpack into a directory
//!           adios        the end
//! ```
//!
//! Each `write` and `close` is answered with `okthx`. `error` ends a conversation.

pub mod helper;
pub mod listener;

use std::io::{self, ErrorKind, Read, Write};

/// Maximum bytes of content in one message. mmdebstrap takes a shorter message for the last one.
const CONTENT_BYTES: usize = 4096;

/// Length of a word.
const WORD_BYTES: usize = 5;

/// Word of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    OpenRead,
    OpenWrite,
    MakeTar,
    MakeTarOfContent,
    Untar,
    Write,
    Close,
    Thanks,
    Error,
    Goodbye,
}

/// All words, in the form in which they are sent.
const WORDS: [(Word, &[u8; WORD_BYTES]); 10] = [
    (Word::OpenRead, b"openr"),
    (Word::OpenWrite, b"openw"),
    (Word::MakeTar, b"mktar"),
    (Word::MakeTarOfContent, b"mktac"),
    (Word::Untar, b"untar"),
    (Word::Write, b"write"),
    (Word::Close, b"close"),
    (Word::Thanks, b"okthx"),
    (Word::Error, b"error"),
    (Word::Goodbye, b"adios"),
];

/// Connection to the other end of the protocol.
#[derive(Debug)]
pub struct Peer<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Peer<R, W> {
    /// Makes a peer that receives from `from` and sends to `to`.
    pub fn new(from: R, to: W) -> Peer<R, W> {
        Peer { from, to }
    }

    fn send(&mut self, word: Word, content: &[u8]) -> io::Result<()> {
        let length = u16::try_from(content.len()).map_err(|_| wrong("a message is too long"))?;
        let mut message = length.to_be_bytes().to_vec();
        let (_, name) = WORDS.iter().find(|(known, _)| *known == word).ok_or_else(|| wrong("no such word"))?;
        message.extend(*name);
        message.extend(content);
        self.to.write_all(&message)?;
        self.to.flush()
    }

    /// Receives the next message; `None` at the end of the input.
    fn receive(&mut self) -> io::Result<Option<(Word, Vec<u8>)>> {
        let mut head = [0; 2 + WORD_BYTES];
        let first = loop {
            match self.from.read(&mut head) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                count => break count?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        self.from.read_exact(&mut head[first..])?;
        let name = &head[2..];
        let Some((word, _)) = WORDS.iter().find(|(_, known)| *known == name) else {
            return Err(wrong(&format!("unknown message {}", String::from_utf8_lossy(name))));
        };
        let mut content = vec![0; usize::from(u16::from_be_bytes([head[0], head[1]]))];
        self.from.read_exact(&mut content)?;
        Ok(Some((*word, content)))
    }

    fn receive_thanks(&mut self) -> io::Result<()> {
        match self.receive()? {
            Some((Word::Thanks, _)) => Ok(()),
            Some((Word::Error, _)) => Err(wrong("the other end failed")),
            Some((word, _)) => Err(wrong(&format!("{word:?} instead of an acknowledgement"))),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends the whole content, and waits for each acknowledgement.
    fn send_content(&mut self, content: &mut dyn Read) -> io::Result<()> {
        let mut buffer = [0; CONTENT_BYTES];
        loop {
            let mut filled = 0;
            while filled < buffer.len() {
                match content.read(&mut buffer[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if filled > 0 {
                self.send(Word::Write, &buffer[..filled])?;
                self.receive_thanks()?;
            }
            if filled < buffer.len() {
                break;
            }
        }
        self.send(Word::Close, &[])?;
        self.receive_thanks()
    }

    /// Writes received content to `to` until the end, and acknowledges each message.
    fn receive_content(&mut self, to: &mut dyn Write) -> io::Result<()> {
        loop {
            match self.receive()? {
                Some((Word::Write, content)) => to.write_all(&content)?,
                Some((Word::Close, _)) => {
                    to.flush()?;
                    return self.send(Word::Thanks, &[]);
                }
                Some((Word::Error, _)) => return Err(wrong("the other end failed")),
                Some((word, _)) => return Err(wrong(&format!("{word:?} instead of content"))),
                None => return Err(ErrorKind::UnexpectedEof.into()),
            }
            self.send(Word::Thanks, &[])?;
        }
    }

    /// Tells the other end of an error, unless it is gone.
    fn fail(&mut self) {
        let _ = self.send(Word::Error, &[]);
    }
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("hook protocol: {text}"))
}

fn with_path(path: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::*;

    fn peer(stream: &UnixStream) -> Peer<UnixStream, UnixStream> {
        Peer::new(stream.try_clone().unwrap(), stream.try_clone().unwrap())
    }

    /// Runs a command of a hook with a listener of our own.
    fn run(root: &Path, skips: &str, command: &str, arguments: &[&str]) -> io::Result<()> {
        let (inside, outside) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let listening = scope.spawn(move || listener::run(&mut peer(&outside)));
            let root = root.to_str().unwrap();
            let result = helper::run(&helper::Call { root, skips, command, arguments }, &mut peer(&inside));
            drop(inside);
            let heard = listening.join().unwrap();
            assert_eq!(heard.is_ok(), result.is_ok(), "{heard:?} {result:?}");
            result
        })
    }

    #[test]
    fn files_and_trees_go_in_and_out() {
        let dir = tempfile::tempdir().unwrap();
        let (root, there) = (dir.path().join("root"), |name: &str| dir.path().join(name));
        fs::create_dir_all(root.join("real")).unwrap();
        std::os::unix::fs::symlink("/real", root.join("link")).unwrap();
        let text = "x".repeat(3 * CONTENT_BYTES);
        fs::create_dir(there("tree")).unwrap();
        fs::write(there("tree/file"), &text).unwrap();
        let path = |name: &str| there(name).to_str().unwrap().to_owned();
        for target in ["link/foo", "/link/foo", "///link///foo///", "/././link/././foo/././", "/../../link/foo"] {
            run(&root, "", "upload", &[&path("tree/file"), target]).unwrap();
            assert_eq!(fs::read_to_string(root.join("real/foo")).unwrap(), text, "{target}");
            fs::remove_file(root.join("real/foo")).unwrap();
        }
        run(&root, "", "copy-in", &[&path("tree"), "/link"]).unwrap();
        run(&root, "", "sync-in", &[&path("tree"), "/link"]).unwrap();
        for name in ["real/tree/file", "real/file"] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), text);
        }
        run(&root, "", "tar-out", &["/link/tree", &path("new/tree.tar")]).unwrap();
        run(&root, "", "tar-in", &[&path("new/tree.tar"), "/"]).unwrap();
        run(&root, "", "download", &["/tree/file", &path("down")]).unwrap();
        run(&root, "", "copy-out", &["/tree", &path("out")]).unwrap();
        run(&root, "", "sync-out", &["/tree", &path("synced")]).unwrap();
        for name in ["root/tree/file", "down", "out/tree/file", "synced/file"] {
            assert_eq!(fs::read_to_string(there(name)).unwrap(), text, "{name}");
        }
    }

    #[test]
    fn failures_end_both_ends() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let none = none.to_str().unwrap();
        for (command, arguments) in [
            ("upload", &[none, "/x"][..]),
            ("upload", &["/etc/passwd", "/none/x"]),
            ("copy-in", &[none, "/"]),
            ("tar-in", &["/etc/passwd", "/"]),
            ("download", &["/none", none]),
            ("copy-out", &["/none", none]),
            ("upload", &["/etc/passwd"]),
            ("move", &["/a", "/b"]),
        ] {
            assert!(run(dir.path(), "", command, arguments).is_err(), "{command} {arguments:?}");
        }
    }

    #[test]
    fn device_nodes_are_left_out_on_request() {
        assert!(rustix::process::geteuid().is_root(), "makes a device: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let (root, tree) = (dir.path().join("root"), dir.path().join("tree"));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "text").unwrap();
        let made = std::process::Command::new("mknod").arg(tree.join("null")).args(["c", "1", "3"]).status().unwrap();
        assert!(made.success());
        let tree = tree.to_str().unwrap();
        run(&root, "copy-in/mknod,update", "copy-in", &[tree, "/"]).unwrap();
        assert!(root.join("tree/file").exists() && !root.join("tree/null").exists());
        run(&root, "tar-in/mknod", "copy-in", &[tree, "/"]).unwrap();
        assert!(root.join("tree/null").exists());
    }
}
