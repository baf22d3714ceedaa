use super::*;
use crate::pattern::Pattern;
use std::io::Write;

#[test]
fn the_ptx_is_a_c_string() {
    assert_eq!(PTX.find('\0'), Some(PTX.len() - 1), "one zero, at the end");
}

#[test]
fn grids_are_as_large_as_the_message_and_no_larger_than_the_gpu() {
    assert_eq!(grid(0, 100), (1, 32));
    assert_eq!(grid(8, 100), (1, 32));
    assert_eq!(grid(8 * 33, 100), (1, 64));
    assert_eq!(grid(8 * 257, 100), (2, 256));
    assert_eq!(grid(1 << 30, 100), (100, 256));
}

/// A GPU, its kernels, and words for them; says that the test was skipped where there is none.
fn gpu(test: &str) -> Option<(Arc<CudaContext>, Kernels, Words)> {
    let context = match gdsync::cuda::context(0) {
        Ok(context) => context,
        Err(error) => {
            writeln!(std::io::stderr(), "SKIPPED {test}: {error}").unwrap();
            return None;
        }
    };
    let kernels = Kernels::load(context.new_stream().unwrap()).unwrap();
    let words = Words::new(&context, 3).unwrap();
    Some((context, kernels, words))
}

/// Lengths with and without a tail, of one thread, several blocks, and more than the GPU runs at a
/// time.
const LENGTHS: [u64; 9] = [0, 1, 7, 8, 15, 1000, 4096, 100_003, (8 << 20) + 5];

#[test]
fn kernels_and_the_cpu_agree_on_messages() {
    let Some((context, kernels, words)) = gpu("kernels_and_the_cpu_agree_on_messages") else { return };
    for (sequence, len) in LENGTHS.into_iter().enumerate() {
        let memory = PinnedMemory::allocate(len as usize).unwrap();
        let address = gdsync::cuda::pin(&context, &memory).unwrap();
        let pattern = Pattern::new(1, sequence as u64);
        // SAFETY: the memory, which is page-aligned, and the words outlive the work, which is
        // waited for.
        unsafe {
            kernels.fill(address, len, pattern.seed).unwrap();
            kernels
                .check(address, len, pattern.seed, sequence as u64, words.address(0), words.address(2))
                .unwrap();
        }
        kernels.stream().synchronize().unwrap();
        assert_eq!(pattern.check(&memory, 0, 0, len as usize), Ok(()), "{len} bytes");
        assert_eq!(words.load(0), 0, "{len} bytes are right, but wrong at {}", words.load(1));
        assert_ne!(words.load(2), 0, "the time was taken");
    }
}

#[test]
fn the_first_wrong_message_is_told_by_its_first_wrong_word() {
    let test = "the_first_wrong_message_is_told_by_its_first_wrong_word";
    for len in LENGTHS.into_iter().filter(|len| *len > 0) {
        // The first wrong message ends the use of a module.
        let Some((context, kernels, words)) = gpu(test) else { return };
        let memory = PinnedMemory::allocate(len as usize).unwrap();
        let address = gdsync::cuda::pin(&context, &memory).unwrap();
        let pattern = Pattern::new(0, 5);
        pattern.fill(&memory, 0, len as usize);
        for at in [len * 2 / 3, len - 1] {
            let byte = &memory.bytes()[at as usize];
            byte.store(byte.load(Ordering::Relaxed) ^ 0x10, Ordering::Relaxed);
        }
        for sequence in [5, 6] {
            // SAFETY: the memory, which is page-aligned, and the words outlive the work, which is
            // waited for.
            unsafe { kernels.check(address, len, pattern.seed, sequence, words.address(0), 0) }.unwrap();
        }
        kernels.stream().synchronize().unwrap();
        if len == 1 {
            // Both flips are of the same byte.
            assert_eq!(words.load(0), 0);
            continue;
        }
        let expected = pattern.check(&memory, 0, 0, len as usize).unwrap_err() as u64;
        assert_eq!((words.load(0), words.load(1)), (6, expected), "{len} bytes");
    }
}
