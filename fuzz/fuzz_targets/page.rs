#![no_main]

#[path = "../targets/page.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::page(data));
