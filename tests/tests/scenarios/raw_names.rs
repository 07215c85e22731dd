//! Objects with names in the BPF file system.

use std::ffi::CString;

use ring3_uapi::Errno;
use ring3_uapi::attr::obj;
use ring3_uapi::bpf::{cmd, map_type, prog_type};

use super::raw_calls::{EXIT, MARK, MOV_R0_0, close, create, element, id_of, load_attr, show, show_fd};
use crate::calls::raw_bpf::{Attr, bpf, result};

const ROOT: &str = "/sys/fs/bpf";

/// A file system of this process's own, where it may mount one: nothing stays.
fn mount() {
    // SAFETY: takes no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return;
    }
    let mount = |kind: &std::ffi::CStr, at: &std::ffi::CStr, flags: u64| {
        // SAFETY: mount wants strings.
        let done = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
        assert_eq!(done, 0, "{at:?}");
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
    mount(c"bpf", c"/sys/fs/bpf", 0);
}

fn pin(path: &str, fd: i64, flags: u64) -> Result<i64, Errno> {
    let path = CString::new(path).expect("no NUL");
    let attr = Attr::new().with(obj::PATHNAME, path.as_ptr() as u64).with(obj::BPF_FD, fd as u64);
    bpf(cmd::OBJ_PIN, &mut attr.with(obj::FILE_FLAGS, flags))
}

fn get(path: &str, flags: u64) -> Result<i64, Errno> {
    let path = CString::new(path).expect("no NUL");
    let attr = Attr::new().with(obj::PATHNAME, path.as_ptr() as u64).with(obj::FILE_FLAGS, flags);
    bpf(cmd::OBJ_GET, &mut attr.clone())
}

fn call(number: i64, path: &str) -> Result<i64, Errno> {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the calls used here want a path, and a mode or nothing.
    result(unsafe { libc::syscall(number, path.as_ptr(), 0o700) })
}

fn call_at(number: i64, path: &str, last: i32) -> Result<i64, Errno> {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the calls used here want a directory, a path, and a mode or flags.
    result(unsafe { libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), last) })
}

fn kind_of(path: &str) {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: statfs is made of integers.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: statfs wants a path and room for its answer.
    let done = result(unsafe { libc::statfs(path.as_ptr(), &mut stat) }.into());
    show("statfs", done);
    println!("{MARK}  {:#x} {} {}", stat.f_type, stat.f_bsize, stat.f_namelen);
}

pub(crate) fn names_are_given_and_taken() {
    mount();
    let map = bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 4, 4, 0)).expect("a map");
    let program = bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])).expect("a program");
    let at = |name: &str| format!("{ROOT}/{name}");
    kind_of(ROOT);
    kind_of(&at("nowhere"));
    show("folder", call(libc::SYS_mkdir, &at("folder")));
    show("folder again", call(libc::SYS_mkdir, &at("folder")));
    show("folder in it", call_at(libc::SYS_mkdirat, &at("folder/inner"), 0o700));
    show("folder in none", call(libc::SYS_mkdir, &at("none/inner")));
    kind_of(&at("folder"));
    for (what, path) in [
        ("map", at("map")),
        ("again", at("map")),
        ("in a folder", at("folder/map")),
        ("by way of another", at("folder/inner/../second")),
        ("over a folder", at("folder")),
        ("in no folder", at("none/map")),
        ("in a map", at("map/map")),
        ("with a dot", at("a.map")),
        ("elsewhere", "/tmp/ring3-test-pin".into()),
        ("in nothing", "/no/such/folder".into()),
        ("nothing", String::new()),
    ] {
        show(&format!("pin {what}"), pin(&path, map, 0));
    }
    show("pin program", pin(&at("program"), program, 0));
    show("pin flags", pin(&at("flags"), map, 1));
    show("pin read-only", pin(&at("flags"), map, 8));
    show("pin nothing", pin(&at("nothing"), -1, 0));
    // SAFETY: takes no memory.
    let file = unsafe { libc::eventfd(0, 0) };
    show("pin a file", pin(&at("nothing"), file.into(), 0));
    let key = 7u32.to_ne_bytes();
    show("update", element(map, cmd::MAP_UPDATE_ELEM, Some(&key), &mut 9u32.to_ne_bytes(), 0));
    let id = id_of(map);
    close(map);
    for (path, flags) in [
        (at("map"), 0),
        (at("folder/map"), 0),
        (at("folder/second"), 0),
        (at("./folder//second"), 0),
        (at("map"), 8),
        (at("map"), 16),
        (at("map"), 24),
        (at("map"), 1),
        (at("program"), 0),
        (at("program"), 8),
        (at("folder"), 0),
        (at("none"), 0),
        (at("none/map"), 0),
        (at("a.map"), 0),
        ("/etc/passwd".into(), 0),
        ("/no/such/folder".into(), 0),
    ] {
        let fd = show_fd(&format!("get {path} {flags}"), get(&path, flags));
        if fd >= 0 && !path.ends_with("program") {
            println!("{MARK}  the same {}", id_of(fd) == id);
            let mut value = [0; 4];
            show("lookup", element(fd, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
            show("update", element(fd, cmd::MAP_UPDATE_ELEM, Some(&key), &mut 9u32.to_ne_bytes(), 0));
            println!("{MARK}  {value:?}");
        }
        close(fd);
    }
    names_are_taken(&at);
    array_with_a_name_stays_full(&at);
    close(program);
}

fn names_are_taken(at: &dyn Fn(&str) -> String) {
    show("rmdir full", call(libc::SYS_rmdir, &at("folder")));
    show("rmdir map", call(libc::SYS_rmdir, &at("map")));
    show("unlink folder", call(libc::SYS_unlink, &at("folder/inner")));
    show("unlink", call(libc::SYS_unlink, &at("map")));
    show("unlink again", call(libc::SYS_unlink, &at("map")));
    show("unlinkat", call_at(libc::SYS_unlinkat, &at("folder/map"), 0));
    show("get what is gone", get(&at("map"), 0));
    close(show_fd("get what is left", get(&at("folder/second"), 0)));
    show("unlink", call(libc::SYS_unlink, &at("folder/second")));
    show("unlink program", call(libc::SYS_unlink, &at("program")));
    show("rmdir inner", call_at(libc::SYS_unlinkat, &at("folder/inner"), libc::AT_REMOVEDIR));
    show("rmdir", call(libc::SYS_rmdir, &at("folder")));
    show("rmdir again", call(libc::SYS_rmdir, &at("folder")));
}

/// An array of programs is emptied when it has neither a descriptor nor a name.
fn array_with_a_name_stays_full(at: &dyn Fn(&str) -> String) {
    let program = bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])).expect("a program");
    let array = bpf(cmd::MAP_CREATE, &mut create(map_type::PROG_ARRAY, 4, 4, 1, 0)).expect("an array");
    let (key, mut value) = (0u32.to_ne_bytes(), (program as u32).to_ne_bytes());
    show("put", element(array, cmd::MAP_UPDATE_ELEM, Some(&key), &mut value, 0));
    show("pin", pin(&at("array"), array, 0));
    close(array);
    let array = show_fd("get", get(&at("array"), 0));
    show("still there", element(array, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    show("unlink", call(libc::SYS_unlink, &at("array")));
    show("still there", element(array, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    close(array);
    close(program);
}
