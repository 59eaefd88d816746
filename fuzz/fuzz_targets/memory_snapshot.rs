#![no_main]

#[path = "../targets/memory_snapshot.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::memory_snapshot(data));
