//! A function of this file that can be probed.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// What is probed. Only victims call it.
#[inline(never)]
pub(crate) extern "C" fn probed(a: u64, b: u64) -> u64 {
    std::hint::black_box(a).rotate_left(7) ^ std::hint::black_box(b).wrapping_mul(3)
}

/// This file, and the offset of [`probed`] in it.
pub(crate) fn site() -> (CString, u64) {
    place(std::hint::black_box(probed as extern "C" fn(u64, u64) -> u64) as usize as u64)
}

/// This file, and the offset in it of what is mapped at an address.
pub(crate) fn place(at: u64) -> (CString, u64) {
    let path = std::env::current_exe().expect("this file");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let offset = maps.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let (start, end) = words[0].split_once('-')?;
        (hex(start)..hex(end)).contains(&at).then(|| at - hex(start) + hex(words[2]))
    });
    (CString::new(path.as_os_str().as_bytes()).expect("a path"), offset.expect("a function is mapped"))
}
