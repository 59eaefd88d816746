//! What glibc's malloc does with memory that queries have given back: by itself it keeps most of it for later ones, up to
//! several times what all queries together may take.

/// Bytes of a block that goes back to the system as soon as it is free. By itself malloc raises this to 32 MiB with the
/// blocks that come and go, and keeps the smaller ones.
#[cfg(target_env = "gnu")]
const SEPARATE_BLOCK: i32 = 1 << 20;
/// Bytes that stay with malloc at the end of what it has.
#[cfg(target_env = "gnu")]
const MAX_SPARE: i32 = 2 << 20;
/// What has taken less leaves nothing that would be worth looking for.
const MIN_TAKEN: usize = 4 << 20;

/// Says to malloc, once, what it is to keep.
pub(super) fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: mallopt sets two numbers of malloc's own, under malloc's lock.
        ONCE.call_once(|| unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, SEPARATE_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_SPARE);
        });
    }
}

/// Gives back to the system what a query that had `taken` bytes has left with malloc.
pub(super) fn give_back(taken: usize) {
    if taken < MIN_TAKEN {
        return;
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim gives free pages back, under the locks of malloc's arenas, one at a time.
    unsafe {
        libc::malloc_trim(0);
    }
}
