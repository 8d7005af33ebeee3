//! The program against a far end in the test, by a script that stands for ssh.
#![allow(dead_code)] // each test takes what it needs

use std::fs;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};

use fullbore_copy::wire::{Decoder, Message, encode};
use fullbore_testkit::process::{clean_command, write_program};

use crate::copy_harness::Place;

/// A script that stands for ssh and connects the program with this test.
fn way(place: &Place, port: u16) -> String {
    let path = place.path("way");
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; exec 4<&0; cat <&4 >&3 & exec cat <&3");
    write_program(&path, &format!("#!/bin/bash\n{script}\n"));
    path.display().to_string()
}

/// Runs the program, for a minute at most.
pub fn fullbore(place: &Place, arguments: &[&str]) -> Output {
    // A far end of this test that goes wrong must not keep it for ever.
    let mut command = clean_command("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_fullbore")]).args(arguments).current_dir(place.path("")).output().unwrap()
}

/// Runs the program against a far end in this process.
pub fn against(arguments: &[&str], far: impl FnOnce(TcpStream) + Send + 'static) -> (Place, Output) {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/file"), vec![b'x'; 100_000]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = way(&place, listener.local_addr().unwrap().port());
    let serving = std::thread::spawn(move || far(listener.accept().unwrap().0));
    let mut all = vec![arguments[0], "-e", &way, "--ssh-only"];
    all.extend(&arguments[1..]);
    let output = fullbore(&place, &all);
    serving.join().unwrap();
    (place, output)
}

/// The real far end, with its messages changed on their way to the near end.
pub fn relayed<M: IntoIterator<Item = Message>>(near: TcpStream, change: impl Fn(Message) -> M) {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let mut far = command.args(["copy", "--server"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut to, mut from) = (far.stdin.take().unwrap(), BufReader::new(far.stdout.take().unwrap()));
    let mut hearing = near.try_clone().unwrap();
    let upward = std::thread::spawn(move || {
        // Not `io::copy`: splice(2) keeps the pipe locked, and its reader out, while it waits for the socket.
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = hearing.read(&mut buffer)
            && to.write_all(&buffer[..count]).is_ok()
        {}
    });
    let mut near = BufWriter::new(near);
    // Hello and Ready are lines.
    for _ in 0..2 {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line).unwrap();
        near.write_all(&line).unwrap();
        near.flush().unwrap();
    }
    let mut decoder = Decoder::new();
    while let Ok(count @ 1..) = from.read(decoder.space()) {
        let Some(message) = decoder.filled(count).unwrap() else { continue };
        let mut is_over = false;
        for message in change(message) {
            is_over |= matches!(message, Message::Abort { .. });
            let mut frame = Vec::new();
            // The payload is not copied into the frame.
            let payload = encode(&message, &mut frame);
            if near.write_all(&[&frame[..], payload].concat()).is_err() {
                is_over = true;
                break;
            }
        }
        if near.flush().is_err() || is_over {
            break;
        }
    }
    let _ = far.kill();
    let _ = near.get_ref().shutdown(std::net::Shutdown::Write);
    far.wait().unwrap();
    upward.join().unwrap();
}
