//! The conversation with APT over a pair of pipes.
//!
//! [`serve`] is enough for a method that handles one request at a time. A method with many requests in flight reads
//! [`Incoming`] in its own thread, and gives clones of [`Outgoing`] to all that send messages.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::configuration::{Configuration, ConfigurationError};
use super::message::{Message, MessageError, Messages};
use super::request::{Failure, Request};

/// Bytes per read: the size of a pipe in Linux.
const READ_BYTES: usize = 64 << 10;

/// Why reading from APT ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IncomingError {
    /// The pipe cannot be read.
    #[error("cannot read from APT: {0}")]
    Io(#[from] io::Error),
    /// An invalid message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// An invalid `601 Configuration`.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// APT closed the pipe within a message.
    #[error("APT's last message has no end")]
    Unfinished,
}

/// The capabilities of a method, for `100 Capabilities`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Whether APT may send several requests at once.
    pub pipeline: bool,
}

impl Capabilities {
    /// The message. It always requests %-encoded URIs and the configuration.
    pub fn message(self) -> Message {
        let message = Message::new(100, "Capabilities").with("Send-URI-Encoded", "true").with("Version", "2.0");
        let message = if self.pipeline { message.with("Pipeline", "true") } else { message };
        message.with("Send-Config", "true")
    }
}

/// Reads messages of APT from a pipe.
#[derive(Debug)]
pub struct Incoming<R> {
    pipe: R,
    messages: Messages,
    buffer: Box<[u8]>,
}

impl<R: Read> Incoming<R> {
    /// Reads from this end of a pipe.
    pub fn new(pipe: R) -> Incoming<R> {
        Incoming { pipe, messages: Messages::new(), buffer: vec![0; READ_BYTES].into_boxed_slice() }
    }

    /// Waits for the next message; `None` when APT has closed the pipe.
    ///
    /// # Errors
    /// [`IncomingError::Io`] if the pipe cannot be read, [`IncomingError::Message`] or [`IncomingError::Configuration`]
    /// for invalid data, [`IncomingError::Unfinished`] if the pipe ends within a message.
    pub fn receive(&mut self) -> Result<Option<Message>, IncomingError> {
        loop {
            if let Some(message) = self.messages.take() {
                return Ok(Some(message));
            }
            match self.pipe.read(&mut self.buffer) {
                Ok(0) if self.messages.is_unfinished() => return Err(IncomingError::Unfinished),
                Ok(0) => return Ok(None),
                Ok(count) => self.messages.feed(&self.buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Messages to APT. Clones write to the same pipe, each message as a whole.
#[derive(Clone)]
pub struct Outgoing {
    pipe: Arc<Mutex<dyn Write + Send>>,
}

impl Outgoing {
    /// Writes to this end of a pipe.
    pub fn new(pipe: impl Write + Send + 'static) -> Outgoing {
        Outgoing { pipe: Arc::new(Mutex::new(pipe)) }
    }

    /// Writes a message to APT and flushes the pipe.
    ///
    /// # Errors
    /// The error of writing to the pipe; `BrokenPipe` if APT has ended, which is a normal end.
    pub fn send(&self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        // A writer that panicked leaves half a message at worst.
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        pipe.write_all(&bytes)?;
        pipe.flush()
    }

    /// Sends `101 Log`, which APT shows in debug mode.
    ///
    /// # Errors
    /// The pipe cannot be written; `BrokenPipe` if APT has ended, which is a normal end.
    pub fn log(&self, request: &Request, text: &str) -> io::Result<()> {
        self.send(&Message::new(101, "Log").with("URI", &request.uri).with("Message", text))
    }

    /// Sends `102 Status`, which APT shows beside the item: `Connecting to deb.example.org`.
    ///
    /// # Errors
    /// The pipe cannot be written; `BrokenPipe` if APT has ended, which is a normal end.
    pub fn status(&self, request: &Request, text: &str) -> io::Result<()> {
        self.send(&Message::new(102, "Status").with("URI", &request.uri).with("Message", text))
    }

    /// Sends `104 Warning`, which APT shows at the end.
    ///
    /// # Errors
    /// The pipe cannot be written; `BrokenPipe` if APT has ended, which is a normal end.
    pub fn warning(&self, request: &Request, text: &str) -> io::Result<()> {
        self.send(&Message::new(104, "Warning").with("URI", &request.uri).with("Message", text))
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outgoing")
    }
}

/// A method that serves one request at a time.
pub trait Method {
    /// The method's name, as in `Binary::NAME` of the configuration.
    fn name(&self) -> &'static str;

    /// The method's capabilities.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Receives APT's configuration, and drops unneeded privileges.
    ///
    /// # Errors
    /// A message for the user of APT; the method ends then.
    fn configure(&mut self, configuration: Configuration) -> Result<(), String>;

    /// Serves a request; returns the `201 URI Done` to send.
    ///
    /// # Errors
    /// The reason, which becomes `400 URI Failure`. A panic becomes a failure, too.
    fn acquire(&mut self, request: &Request, apt: &Outgoing) -> Result<Message, Failure>;
}

/// Serves APT until it closes the pipe.
///
/// An error within a request becomes an answer to APT. After a `400` APT continues, while the end of a method fails its
/// whole run.
///
/// # Errors
/// The errors of [`Incoming::receive`]. An unfinished message is not an error: APT was stopped while it wrote.
pub fn serve(method: &mut dyn Method, from: impl Read, apt: &Outgoing) -> Result<(), IncomingError> {
    match converse(method, from, apt) {
        Err(IncomingError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        // APT was stopped while it wrote.
        Err(IncomingError::Unfinished) => Ok(()),
        result => result,
    }
}

fn converse(method: &mut dyn Method, from: impl Read, apt: &Outgoing) -> Result<(), IncomingError> {
    apt.send(&method.capabilities().message())?;
    let mut incoming = Incoming::new(from);
    while let Some(message) = incoming.receive()? {
        match message.code {
            600 => {
                let request = Request::new(message);
                let answer = match catch_unwind(AssertUnwindSafe(|| method.acquire(&request, apt))) {
                    Ok(Ok(done)) => done,
                    Ok(Err(failure)) => request.failed(&failure),
                    Err(panic) => {
                        let text = format!("fault in the {} method: {}", method.name(), panic_text(panic.as_ref()));
                        request.failed(&Failure::new(text))
                    }
                };
                apt.send(&answer)?;
            }
            601 => {
                let configuration = Configuration::from_message(&message, method.name())?;
                if let Err(text) = method.configure(configuration) {
                    apt.send(&Message::new(401, "General Failure").with("Message", text))?;
                    return Ok(());
                }
            }
            // Answers to requests that this method never sends (602, 603), and codes of later APT versions.
            _ => {}
        }
    }
    Ok(())
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Test {
        user: Option<String>,
    }

    impl Method for Test {
        fn name(&self) -> &'static str {
            "test"
        }

        fn configure(&mut self, configuration: Configuration) -> Result<(), String> {
            self.user = Some(configuration.get("APT::Sandbox::User").ok_or("no user")?.to_owned());
            Ok(())
        }

        fn acquire(&mut self, request: &Request, apt: &Outgoing) -> Result<Message, Failure> {
            match request.uri.as_str() {
                "test:good" => {
                    apt.send(&request.started()).map_err(Failure::new)?;
                    Ok(request.done())
                }
                "test:panic" => panic!("at the disco"),
                other => Err(Failure::new(format_args!("no {other}"))),
            }
        }
    }

    /// A pipe that can be looked into.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<u8>>>);

    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answers(input: &str) -> Vec<String> {
        let seen = Seen::default();
        serve(&mut Test::default(), input.as_bytes(), &Outgoing::new(seen.clone())).unwrap();
        let bytes = seen.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().split_terminator("\n\n").map(str::to_owned).collect()
    }

    const CONFIGURATION: &str = "601 Configuration\nConfig-Item: APT::Sandbox::User=x\n\n";

    #[test]
    fn every_request_has_an_answer() {
        let request = |what: &str| format!("600 URI Acquire\nURI: test:{what}\nFilename: /{what}\n\n");
        let said = answers(&[CONFIGURATION, &request("panic"), &request("bad"), &request("good"), "600 URI"].concat());
        assert_eq!(said[0], "100 Capabilities\nSend-URI-Encoded: true\nVersion: 2.0\nSend-Config: true");
        assert_eq!(said[1], "400 URI Failure\nURI: test:panic\nMessage: fault in the test method: at the disco");
        assert_eq!(said[2], "400 URI Failure\nURI: test:bad\nMessage: no test:bad");
        assert_eq!(said[3], "200 URI Start\nURI: test:good");
        assert_eq!(said[4], "201 URI Done\nURI: test:good\nFilename: /good");
        assert_eq!(said.len(), 5);
    }

    #[test]
    fn a_configuration_that_will_not_do_is_the_end() {
        let said = answers("601 Configuration\nConfig-Item: A=b\n\n600 URI Acquire\nURI: test:good\n\n");
        assert_eq!(said[1..], ["401 General Failure\nMessage: no user"]);
    }

    #[test]
    fn apt_that_is_gone_is_a_quiet_end() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        serve(&mut Test::default(), &b""[..], &Outgoing::new(Gone)).unwrap();
        let error = serve(&mut Test::default(), &b"hello\n\n"[..], &Outgoing::new(Seen::default()));
        assert!(matches!(error, Err(IncomingError::Message(_))));
    }
}
