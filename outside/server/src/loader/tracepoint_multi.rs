//! Links of a program to many tracepoints (`RING3_TRACEPOINT_MULTI`, which the kernel does not have).
//!
//! A tool that traces each system call has some 730 tracepoints. One after the other, each is a file to read, a perf event and a link:
//! calls of the loader's, each of which waits for the server.

use std::sync::Arc;

use ring3_uapi::Errno;
use ring3_uapi::attr::link_create as c;

use super::attr::Attr;
use super::tracepoint::Tracepoint;
use super::{Caller, Reply, links, refuse, refuse_aloud};
use crate::loader::objects::{IdKind, Link, Program};

/// Tracepoints of a link at most: more than there are.
const TRACEPOINTS_MAX: usize = 1024;
/// Bytes of their names at most.
const NAMES_BYTES_MAX: u32 = 64 << 10;

/// Makes a link to the tracepoints whose names a loader gives: to all of them, or to none.
pub(super) fn create(caller: &Caller<'_>, attr: &Attr, program: Arc<Program>) -> Reply {
    let (at, bytes) = (attr.u64(c::TRACEPOINT_MULTI_NAMES.at), attr.u32(c::TRACEPOINT_MULTI_BYTES.at));
    let others = [c::TARGET_FD, c::FLAGS, c::TRACEPOINT_MULTI_FLAGS];
    if others.iter().any(|field| attr.u32(field.at) != 0) || at == 0 || bytes == 0 {
        return Err(refuse(Errno::EINVAL, "a link to many tracepoints: it names none, or has unknown flags"));
    }
    if bytes > NAMES_BYTES_MAX {
        let words =
            format_args!("a link to many tracepoints: {bytes} bytes of names; {NAMES_BYTES_MAX} are possible");
        return Err(refuse(Errno::E2BIG, words));
    }
    let tracepoints = named(&caller.read(at, bytes as usize)?)
        .map_err(|(errno, why)| refuse_aloud(caller, errno, &format!("a link to many tracepoints: {why}")))?;
    let subsystem = caller.subsystem();
    let link = Link::tracepoints(subsystem.new_id(IdKind::Link), program, tracepoints, &subsystem.tracepoints);
    let link = link.map_err(|refusal| refuse_aloud(caller, refusal.errno, &format!("tracepoints: {refusal}")))?;
    links::open(caller, link)
}

/// The tracepoints of names that NUL ends, such as `syscalls:sys_enter_read`; or which is wrong.
fn named(bytes: &[u8]) -> Result<Vec<Tracepoint>, (Errno, String)> {
    let text = bytes.strip_suffix(&[0]).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let text = text.ok_or((Errno::EINVAL, "its names are no text, or the last one has no end".to_owned()))?;
    if text.split('\0').count() > TRACEPOINTS_MAX {
        return Err((Errno::E2BIG, format!("of more than {TRACEPOINTS_MAX} tracepoints")));
    }
    let tracepoint = |name: &str| name.split_once(':').and_then(|(category, name)| Tracepoint::named(category, name));
    let known =
        |name: &str| tracepoint(name).ok_or_else(|| (Errno::ENOENT, format!("there is no tracepoint {name:?} here")));
    text.split('\0').map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_the_wrong_one_is_told() {
        let errno = |bytes: &[u8]| named(bytes).map_err(|(errno, _)| errno);
        let names = b"syscalls:sys_enter_read\0sched:sched_process_exit\0raw_syscalls:sys_exit\0";
        let found: Vec<String> = errno(names).expect("all are known").iter().map(ToString::to_string).collect();
        assert_eq!(found.join("\0").as_bytes(), names.strip_suffix(b"\0").expect("an end"));
        let (_, why) = named(b"syscalls:sys_enter_read\0syscalls:sys_enter_raed\0").expect_err("it is unknown");
        assert!(why.contains("\"syscalls:sys_enter_raed\""), "{why}");
        for (bytes, wanted) in [
            (&b"syscalls:sys_enter_read"[..], Errno::EINVAL),
            (b"\0", Errno::ENOENT),
            (b"sys_enter_read\0", Errno::ENOENT),
            (b"syscalls:sys_enter_read\0\0", Errno::ENOENT),
            (b"syscalls:sys_enter_\xff\0", Errno::EINVAL),
        ] {
            assert_eq!(errno(bytes), Err(wanted), "{bytes:?}");
        }
        assert_eq!(errno(&b"sched:sched_process_exit\0".repeat(TRACEPOINTS_MAX + 1)), Err(Errno::E2BIG));
    }

    #[test]
    fn a_link_has_room_for_all_tracepoints() {
        let names: Vec<u8> = Tracepoint::all().flat_map(|of| format!("{of}\0").into_bytes()).collect();
        assert!(names.len() <= NAMES_BYTES_MAX as usize, "{}", names.len());
        assert_eq!(named(&names).map(|all| all.len()), Ok(Tracepoint::all().count()));
    }
}
