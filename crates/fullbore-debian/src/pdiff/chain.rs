//! Joins steps: edits from state 0 to 1 and from 1 to 2 become edits from 0 to 2.
//!
//! Both lists are read in parallel, in one pass over the lines of the middle state. Neighbours are joined in pairs
//! until one list is left, so each edit is visited once per level: O(hunks · log N) for N steps. Texts are not copied:
//! a later step that removes a part of an earlier text shortens its slice.

use std::ops::Range;

use bytes::Bytes;
use memchr::memchr_iter;

use super::script::{ScriptFault, too_many_steps};
use super::{EDITS_MAX, Edit, Edits, STEPS_MAX, ScriptError, Slice};

impl Edits {
    /// Joins consecutive steps, oldest first, into one list of edits.
    ///
    /// # Errors
    /// [`ScriptFault::TooLarge`] for more than [`STEPS_MAX`] steps, or more than
    /// `EDITS_MAX` edits in the result. Only [`Splice`](super::Splice) can detect edits beyond the end of the file.
    pub fn chain(steps: Vec<Edits>) -> Result<Edits, ScriptError> {
        if steps.len() > STEPS_MAX {
            return Err(too_many_steps());
        }
        // All texts are collected in one list of buffers first, so that joining moves only numbers.
        let mut buffers: Vec<Bytes> = Vec::new();
        let mut lists: Vec<List> = Vec::with_capacity(steps.len());
        for mut step in steps {
            step.slices.iter_mut().for_each(|slice| slice.buffer += buffers.len());
            buffers.append(&mut step.buffers);
            lists.push(List { edits: step.edits, slices: step.slices });
        }
        while lists.len() > 1 {
            let mut joined = Vec::with_capacity(lists.len().div_ceil(2));
            let mut rest = lists.into_iter();
            while let Some(first) = rest.next() {
                joined.push(match rest.next() {
                    Some(second) => join(&first, &second, &buffers)?,
                    None => first,
                });
            }
            lists = joined;
        }
        let List { edits, slices } = lists.pop().unwrap_or_default();
        Ok(Edits { edits, slices, buffers })
    }
}

/// Edits and their texts without the buffers.
#[derive(Debug, Default)]
struct List {
    edits: Vec<Edit>,
    slices: Vec<Slice>,
}

/// Joins two consecutive steps.
fn join(first: &List, second: &List, buffers: &[Bytes]) -> Result<List, ScriptError> {
    let mut walk = Walk { list: first, buffers, next: 0, line: 0, middle: 0, text: Range::default(), cut: None };
    let mut builder = Builder::default();
    for edit in &second.edits {
        walk.keep_to(edit.line, &mut builder);
        walk.remove_to(edit.line + edit.removed, &mut builder);
        builder.add_slices(&second.slices[edit.first_slice..edit.first_slice + edit.slices]);
        if builder.list.edits.len() > EDITS_MAX {
            break;
        }
    }
    walk.keep_rest(&mut builder);
    let list = builder.into_list();
    if list.edits.len() > EDITS_MAX {
        return Err(ScriptFault::TooLarge { what: "number of edits", limit: EDITS_MAX }.of_step(0));
    }
    Ok(list)
}

/// A pass over the state between two steps, which consists of lines of the old file and of new text.
struct Walk<'l> {
    list: &'l List,
    buffers: &'l [Bytes],
    /// The next edit of the first step.
    next: usize,
    /// Number of lines of the old file already passed.
    line: u64,
    /// Number of lines of the middle state already passed.
    middle: u64,
    /// Slices of the last begun edit that are still ahead.
    text: Range<usize>,
    /// The rest of the first of these slices, if it was used in part.
    cut: Option<Slice>,
}

/// Next lines of the middle state.
enum Next {
    /// New text of the first step.
    Text(Slice),
    /// This number of lines of the old file, up to the next edit; `u64::MAX` if there is no further edit.
    Old(u64),
}

impl Walk<'_> {
    /// Returns the next lines; starts an edit of the first step at its position.
    fn peek(&mut self, builder: &mut Builder) -> Next {
        loop {
            if let Some(slice) = self.cut.or_else(|| self.list.slices[self.text.clone()].first().copied()) {
                return Next::Text(slice);
            }
            let Some(edit) = self.list.edits.get(self.next) else {
                return Next::Old(u64::MAX);
            };
            if edit.line > self.line {
                return Next::Old(edit.line - self.line);
            }
            // The lines that this edit removes are not in the middle state.
            builder.keep_to(self.line);
            builder.remove(edit.removed);
            self.line += edit.removed;
            self.text = edit.first_slice..edit.first_slice + edit.slices;
            self.next += 1;
        }
    }

    /// Advances to this line of the middle state and keeps the lines before it.
    fn keep_to(&mut self, middle: u64, builder: &mut Builder) {
        while self.middle < middle {
            let wanted = middle - self.middle;
            match self.peek(builder) {
                Next::Text(slice) => {
                    builder.keep_to(self.line);
                    let used = self.use_text(slice, wanted);
                    builder.add_slices(&[used]);
                }
                Next::Old(lines) => {
                    let lines = lines.min(wanted);
                    self.line += lines;
                    self.middle += lines;
                }
            }
        }
    }

    /// Advances to this line of the middle state and removes the lines before it.
    fn remove_to(&mut self, middle: u64, builder: &mut Builder) {
        builder.keep_to(self.line);
        while self.middle < middle {
            let wanted = middle - self.middle;
            match self.peek(builder) {
                Next::Text(slice) => {
                    self.use_text(slice, wanted);
                }
                Next::Old(lines) => {
                    let lines = lines.min(wanted);
                    builder.remove(lines);
                    self.line += lines;
                    self.middle += lines;
                }
            }
        }
    }

    /// Takes at most `lines` lines of the next text and returns them.
    fn use_text(&mut self, slice: Slice, lines: u64) -> Slice {
        self.middle += slice.lines.min(lines);
        if slice.lines <= lines {
            self.cut = None;
            self.text.start += 1;
            return slice;
        }
        let text = &self.buffers[slice.buffer][slice.start..slice.end];
        let newline = memchr_iter(b'\n', text).nth((lines - 1) as usize).expect("a slice has as many lines as it says");
        let at = slice.start + newline + 1;
        self.cut = Some(Slice { start: at, lines: slice.lines - lines, ..slice });
        Slice { end: at, lines, ..slice }
    }

    /// Keeps the rest of the first step.
    fn keep_rest(&mut self, builder: &mut Builder) {
        loop {
            match self.peek(builder) {
                Next::Text(slice) => {
                    builder.keep_to(self.line);
                    let used = self.use_text(slice, u64::MAX);
                    builder.add_slices(&[used]);
                }
                Next::Old(u64::MAX) => return,
                Next::Old(lines) => self.line += lines,
            }
        }
    }
}

/// Builds a list of edits from left to right. Edits without an untouched line between them become one.
#[derive(Debug, Default)]
pub(super) struct Builder {
    list: List,
    /// The last edit, which may still be extended.
    open: Option<Edit>,
}

impl Builder {
    /// Keeps the old lines before this one, counted from 0, unless they are removed already.
    pub(super) fn keep_to(&mut self, line: u64) {
        if self.open.is_some_and(|open| open.end() >= line) {
            return;
        }
        self.close();
        self.open = Some(Edit { line, removed: 0, added: 0, first_slice: self.list.slices.len(), slices: 0 });
    }

    /// Removes the next `lines` old lines.
    pub(super) fn remove(&mut self, lines: u64) {
        self.open_edit().removed += lines;
    }

    /// Adds whole lines of the buffer with this number.
    pub(super) fn add_text(&mut self, buffer: &Bytes, number: usize, range: Range<usize>) {
        let lines = memchr_iter(b'\n', &buffer[range.clone()]).count() as u64;
        self.add_slices(&[Slice { buffer: number, start: range.start, end: range.end, lines }]);
    }

    fn add_slices(&mut self, slices: &[Slice]) {
        let lines: u64 = slices.iter().map(|slice| slice.lines).sum();
        let open = self.open_edit();
        open.added += lines;
        open.slices += slices.len();
        self.list.slices.extend_from_slice(slices);
    }

    fn open_edit(&mut self) -> &mut Edit {
        let first_slice = self.list.slices.len();
        self.open.get_or_insert(Edit { line: 0, removed: 0, added: 0, first_slice, slices: 0 })
    }

    fn close(&mut self) {
        self.list.edits.extend(self.open.take().filter(|edit| edit.removed > 0 || edit.added > 0));
    }

    fn into_list(mut self) -> List {
        self.close();
        self.list
    }

    pub(super) fn finish(self, buffers: Vec<Bytes>) -> Edits {
        let List { edits, slices } = self.into_list();
        Edits { edits, slices, buffers }
    }
}
