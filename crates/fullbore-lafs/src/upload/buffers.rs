//! Memory of segments that is used again: what is given back to the kernel comes back page by page, each at the cost of
//! a fault and of zeros that nobody reads (measured: 100 MB, 3-of-10, a sixth of all processor time).

use std::sync::{Arc, Mutex, PoisonError};

/// Memory that is spare. Clones share it.
///
/// All of it is of one size, for which it was given: whoever needs another one frees it. New memory is made only when
/// there is none, so that what is spare and what is in use together are not more than was ever in use.
#[derive(Debug, Clone, Default)]
pub struct SpareBuffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl SpareBuffers {
    /// So many bytes, whatever is in them.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = spare.pop_if(|memory| memory.len() == bytes) {
            return memory;
        }
        let useless = std::mem::take(&mut *spare);
        drop(spare);
        drop(useless);
        vec![0; bytes]
    }

    /// Takes back what was taken.
    pub fn give(&self, memory: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_freed_when_another_size_is_wanted() {
        let spare = SpareBuffers::default();
        let kept = || spare.0.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        let memory = spare.take(10);
        let address = memory.as_ptr();
        spare.give(memory);
        assert_eq!(kept(), [10]);
        let again = spare.take(10);
        assert_eq!((again.as_ptr(), again.len()), (address, 10));
        spare.give(again);
        spare.give(vec![1; 20]);
        assert_eq!(spare.take(20), [1; 20]);
        assert_eq!(spare.take(30), [0; 30]);
        assert!(kept().is_empty());
    }
}
