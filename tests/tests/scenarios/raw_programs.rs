//! BTF and programs, what is told of them, how long they live, and what is refused.

use crate::calls::raw_bpf::{Attr, address, bpf};
use ring3_btf::kind as btf_kind;
use ring3_tests::wait_until;
use ring3_uapi::Errno;
use ring3_uapi::attr;
use ring3_uapi::bpf::{attach_type, cmd, map_type, prog_type};

use super::raw_calls::{
    BAD, EXIT, MARK, MOV_R0_0, btf_blob, close, create, element, id_of, load_attr, load_btf, named, show,
    show_descriptor, show_fd,
};
use super::raw_tracepoints::kernel_type;

pub(crate) fn btf_is_loaded_and_checked() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("int", btf_blob(&[], b"")),
        ("func", btf_blob(&[0, 0x0d00_0000, 0, 5, 0x0c00_0000, 2], b"f\0")),
        ("global func", btf_blob(&[0, 0x0d00_0000, 0, 5, 0x0c00_0001, 2], b"f\0")),
        ("datasec", btf_blob(&[5, 0x0e00_0000, 1, 0, 7, 0x0f00_0001, 4, 2, 0, 4], b"x\0.d\0")),
        ("float", btf_blob(&[5, 0x1000_0000, 4], b"f\0")),
        ("decl tag", btf_blob(&[5, 0x0e00_0000, 1, 1, 5, 0x1100_0000, 2, 0xffff_ffff], b"x\0")),
        ("type tag", btf_blob(&[5, 0x1200_0000, 1, 0, 0x0200_0000, 2], b"x\0")),
        ("enum64", btf_blob(&[0, 0x1300_0001, 8, 5, 0, 0], b"e\0")),
        ("pointer to nothing there", btf_blob(&[0, 0x0200_0000, 9], b"")),
        ("unknown kind", btf_blob(&[0, 0x1f00_0000, 9], b"")),
        ("name outside", btf_blob(&[99, 0x1000_0000, 4], b"")),
        ("cut type", btf_blob(&[0, 0x0200_0000], b"")),
        ("no last NUL", btf_blob(&[], b"x")),
        ("reserved bits", btf_blob(&[0, 0x02ff_0000, 1], b"")),
    ];
    for (name, blob) in &cases {
        close(show_fd(name, load_btf(blob)));
    }
    let good = btf_blob(&[], b"");
    for (at, byte) in
        [(0, 0), (2, 2), (3, 1), (4, 23), (4, 28), (8, 4), (8, 2), (12, 0), (16, 200), (20, 0), (20, 200)]
    {
        let mut bad = good.clone();
        bad[at] = byte;
        close(show_fd(&format!("header byte {at} = {byte}"), load_btf(&bad)));
    }
    for bytes in [0, 1, 8, 23, 24, 30] {
        close(show_fd(&format!("first {bytes} bytes"), load_btf(&good[..bytes])));
    }
    let btf = show_fd("int again", load_btf(&good));
    for kind in [map_type::ARRAY, map_type::HASH, map_type::PERCPU_ARRAY] {
        use attr::map_create as m;
        let attr = create(kind, 4, 4, 3, 0).with(m::BTF_FD, btf as u64);
        let made = bpf(cmd::MAP_CREATE, &mut attr.with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1));
        close(show_fd(&format!("map {kind} with types"), made));
    }
    let mut bad = create(map_type::ARRAY, 4, 4, 3, 0);
    for fd in [0u64, 999] {
        use attr::map_create as m;
        bad = bad.with(m::BTF_FD, fd).with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1);
        show_fd(&format!("map with btf {fd}"), bpf(cmd::MAP_CREATE, &mut bad));
    }
}

pub(crate) fn the_kernels_types_are_objects_of_their_own() {
    use attr::{id as d, info as i, map_create as m, prog_load as p};
    let mut next = Attr::new().with(d::START_ID, 0);
    show("the first", bpf(cmd::BTF_GET_NEXT_ID, &mut next));
    println!("{MARK}  {}", next.get(d::NEXT_ID));
    let fd = show_fd("by id", bpf(cmd::BTF_GET_FD_BY_ID, &mut Attr::new().with(d::START_ID, 1)));
    let file = std::fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    let mut bytes = vec![0u8; file.len()];
    // Room for bytes, and for a name.
    for (room, name_room) in [(0, 0), (0, 16), (24, 8), (bytes.len(), 7), (0, 1), (0, usize::MAX), (usize::MAX, 0)] {
        let (mut told, mut name) = ([0u8; 32], [b'x'; 16]);
        let words = [
            (0, if room == usize::MAX { 8 } else { bytes.as_mut_ptr() as u64 }),
            (8, room.min(24 << 20) as u64),
            (16, if name_room == 0 { 0 } else { name.as_mut_ptr() as u64 }),
            (24, if name_room == usize::MAX { 0 } else { name_room as u64 }),
        ];
        words.iter().for_each(|(at, word)| told[*at..*at + 8].copy_from_slice(&word.to_ne_bytes()));
        let attr = Attr::new().with(i::BPF_FD, fd as u64).with(i::INFO_LEN, 32);
        show("told", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
        // (The size is that of the kernel at hand.)
        let is_size = told[8..12] == (file.len() as u32).to_ne_bytes();
        println!("{MARK}  {is_size} {:?} {:?} {name:?} {}", &told[12..16], &told[24..32], bytes == file);
        bytes.truncate(file.len());
    }
    // They are nobody's own.
    let function = [0u32, 1];
    let load = || load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT]);
    let told = load().with(p::PROG_BTF_FD, fd as u64).with(p::FUNC_INFO_CNT, 1).with(p::FUNC_INFO_REC_SIZE, 8);
    let told = bpf(cmd::PROG_LOAD, &mut told.with(p::FUNC_INFO, function.as_ptr() as u64));
    close(show_fd("a program's", told));
    close(show_fd("unread", bpf(cmd::PROG_LOAD, &mut load().with(p::PROG_BTF_FD, fd as u64))));
    close(show_fd("attached to", bpf(cmd::PROG_LOAD, &mut load().with(p::ATTACH_PROG_FD, fd as u64))));
    let map = create(map_type::ARRAY, 4, 4, 1, 0).with(m::BTF_FD, fd as u64);
    let map = bpf(cmd::MAP_CREATE, &mut map.with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1));
    close(show_fd("a map's", map));
    close(fd);
}

pub(crate) fn programs_are_loaded_and_checked() {
    use attr::prog_load as p;
    let good = [MOV_R0_0, EXIT];
    for kind in [
        prog_type::SOCKET_FILTER,
        prog_type::KPROBE,
        prog_type::TRACEPOINT,
        prog_type::PERF_EVENT,
        prog_type::XDP,
        0,
        33,
        1000,
    ] {
        close(show_fd(&format!("type {kind}"), bpf(cmd::PROG_LOAD, &mut load_attr(kind, &good))));
    }
    let kprobe = || load_attr(prog_type::KPROBE, &good);
    let cases = [
        ("no insns", p::INSN_CNT, 0),
        ("too many insns", p::INSN_CNT, 1_000_001),
        ("bad insns", p::INSNS, 8),
        ("bad license", p::LICENSE, 8),
        ("no license", p::LICENSE, 0),
        ("unknown flags", p::PROG_FLAGS, 1 << 31),
        ("strict alignment", p::PROG_FLAGS, 1),
        ("btf fd", p::PROG_BTF_FD, 999),
        ("ifindex", p::PROG_IFINDEX, 9999),
        ("attach prog fd", p::ATTACH_PROG_FD, 999),
        ("kern version", p::KERN_VERSION, 5),
        ("func info", p::FUNC_INFO_CNT, 1),
    ];
    for (what, field, value) in cases {
        close(show_fd(what, bpf(cmd::PROG_LOAD, &mut kprobe().with(field, value))));
    }
    for name in [&b"good_name"[..], b"bad name", b"sixteen__letters", b"fifteen_letters"] {
        let made = bpf(cmd::PROG_LOAD, &mut named(kprobe(), p::PROG_NAME, name));
        close(show_fd(&format!("name {:?}", String::from_utf8_lossy(name)), made));
    }
    let (jump, unknown_helper) = (0x05_0005, 0x7fff_0000_0085);
    for insns in [&[MOV_R0_0][..], &[0xff, EXIT], &[jump, EXIT], &[MOV_R0_0, 0x10_b7, EXIT], &[unknown_helper, EXIT]]
    {
        close(show_fd(&format!("insns {insns:x?}"), bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, insns))));
    }
    for fd in [-1i32, 0, 999] {
        let load = [0x1118 | u64::from(fd as u32) << 32, 0, MOV_R0_0, EXIT];
        close(show_fd(&format!("map fd {fd}"), bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &load))));
    }
}

pub(crate) fn logs_follow_the_rules() {
    use attr::prog_load as p;
    let mut buffer = [0x55u8; 4096];
    for insns in [&[MOV_R0_0, EXIT][..], &[BAD, EXIT]] {
        for (level, bytes, there) in [
            (0u64, 0u64, false),
            (1, 0, false),
            (1, 4096, true),
            (1, 0, true),
            (0, 4096, true),
            (1, 4096, false),
            (16, 4096, true),
            (3, 4096, true),
            (4, 4096, true),
            (1, 1 << 30, true),
            (1, 1, true),
            (9, 1, true),
        ] {
            buffer.fill(0x55);
            let attr = load_attr(prog_type::KPROBE, insns).with(p::LOG_LEVEL, level).with(p::LOG_SIZE, bytes);
            let mut attr = attr.with(p::LOG_BUF, if there { buffer.as_mut_ptr() as u64 } else { 0 });
            let loaded = bpf(cmd::PROG_LOAD, &mut attr);
            close(show_fd(&format!("level {level} size {bytes} buffer {there}"), loaded));
            // The texts are the verifiers' own; that there is one, and that it ends, is the kernel's rule.
            let any = buffer[0] != 0x55;
            let ends = buffer.iter().take(bytes.min(4096) as usize).any(|byte| *byte == 0);
            println!("{MARK}  log {any} ends {ends} true size {}", attr.get(p::LOG_TRUE_SIZE) > 0);
        }
    }
    use attr::btf_load as b;
    let bad = btf_blob(&[0, 0x0200_0000, 9], b"");
    for (level, bytes, there) in [(1u64, 4096u64, true), (1, 0, true), (0, 4096, true), (1, 5, true), (1, 0, false)] {
        buffer.fill(0x55);
        let attr = Attr::new().with(b::BTF, address(&bad[..])).with(b::BTF_SIZE, bad.len() as u64);
        let attr = attr.with(b::BTF_LOG_LEVEL, level).with(b::BTF_LOG_SIZE, bytes);
        let mut attr = attr.with(b::BTF_LOG_BUF, if there { buffer.as_mut_ptr() as u64 } else { 0 });
        show_fd(&format!("btf level {level} size {bytes} buffer {there}"), bpf(cmd::BTF_LOAD, &mut attr));
        println!("{MARK}  log {} true size {}", buffer[0] != 0x55, attr.get(b::BTF_LOG_TRUE_SIZE) > 0);
    }
}

pub(crate) fn information_is_told() {
    use attr::{info as i, map_create as m};
    let map =
        show_fd("map", bpf(cmd::MAP_CREATE, &mut named(create(map_type::HASH, 4, 12, 7, 1), m::MAP_NAME, b"a_map")));
    let use_map = [0x1118 | (map as u64) << 32, 0, MOV_R0_0, EXIT];
    let mut load = named(load_attr(prog_type::KPROBE, &use_map), attr::prog_load::PROG_NAME, b"a_prog");
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load));
    let btf = show_fd("btf", load_btf(&btf_blob(&[], b"")));
    for (name, fd) in [("map", map), ("program", program), ("btf", btf)] {
        show_descriptor(name, fd);
        for bytes in [0u64, 4, 8, 40, 64, 88, 104, 232, 300, 4096, 4097] {
            let mut told = [0u8; 8192];
            let mut attr = Attr::new()
                .with(i::BPF_FD, fd as u64)
                .with(i::INFO_LEN, bytes)
                .with(i::INFO, told.as_mut_ptr() as u64);
            show(&format!("{name} info of {bytes}"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
            println!("{MARK}  length {}", attr.get(i::INFO_LEN));
            let untold: &[(usize, usize)] = match name {
                "map" => &[(4, 8)],                                        // id
                "program" => &[(4, 24), (40, 48), (104, 112), (180, 184)], // id, tag, code, time, tags
                _ => &[(12, 16)],                                          // id
            };
            untold.iter().for_each(|(start, end)| told[*start..*end].fill(0));
            // The user who loaded a program is the one who asks.
            let user = rustix::process::geteuid().as_raw().to_ne_bytes();
            if name == "program" && told[48..52] == user {
                told[48..52].fill(0);
            }
            println!("{MARK}  {:?}", &told[..240]);
            told.fill(0);
            if bytes == 300 {
                told[290] = 1;
                let mut attr = Attr::new()
                    .with(i::BPF_FD, fd as u64)
                    .with(i::INFO_LEN, bytes)
                    .with(i::INFO, told.as_mut_ptr() as u64);
                show(&format!("{name} info with an unknown tail"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
            }
        }
        let mut attr = Attr::new().with(i::BPF_FD, fd as u64).with(i::INFO_LEN, 64).with(i::INFO, 8);
        show(&format!("{name} info nowhere"), bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr));
    }
    // Lists: the program's maps, and BTF's bytes.
    let (mut ids, mut told) = ([0u32; 4], [0u8; 232]);
    for room in [0u32, 1, 4] {
        told.fill(0);
        told[52..56].copy_from_slice(&room.to_ne_bytes());
        told[56..64].copy_from_slice(&(ids.as_mut_ptr() as u64).to_ne_bytes());
        let attr = Attr::new().with(i::BPF_FD, program as u64).with(i::INFO_LEN, 232);
        show("map ids", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
        println!("{MARK}  {} maps, id told {}", told[52], u64::from(ids[0]) == id_of(map));
    }
    let mut insns = [0u64; 8];
    told.fill(0);
    told[20..24].copy_from_slice(&64u32.to_ne_bytes());
    told[32..40].copy_from_slice(&(insns.as_mut_ptr() as u64).to_ne_bytes());
    let attr = Attr::new().with(i::BPF_FD, program as u64).with(i::INFO_LEN, 232);
    show("xlated", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
    insns[0] = insns[0] & 0xffff_ffff | u64::from(insns[0] >> 32 == id_of(map)) << 32;
    println!("{MARK}  {insns:x?}");
    let mut bytes = [0u8; 80];
    let mut told = [0u8; 32];
    told[..8].copy_from_slice(&(bytes.as_mut_ptr() as u64).to_ne_bytes());
    told[8..12].copy_from_slice(&80u32.to_ne_bytes());
    let attr = Attr::new().with(i::BPF_FD, btf as u64).with(i::INFO_LEN, 32);
    show("btf bytes", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut attr.with(i::INFO, told.as_mut_ptr() as u64)));
    println!("{MARK}  {bytes:?} {:?}", &told[8..12]);
}

pub(crate) fn objects_live_as_long_as_somebody_holds_them() {
    let by_id = |command: u32, id: u64| {
        let fd = bpf(command, &mut Attr::new().with(attr::id::START_ID, id));
        if let Ok(fd) = fd {
            close(fd);
        }
        fd.map(|_| 0)
    };
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 12, 7, 0)));
    let map_id = id_of(map);
    // SAFETY: takes no memory.
    let twin = i64::from(unsafe { libc::dup(map as i32) });
    close(map);
    show("a duplicate keeps it", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    let use_map = [0x1118 | (twin as u64) << 32, 0, MOV_R0_0, EXIT];
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &use_map)));
    let program_id = id_of(program);
    close(twin);
    show("a program keeps it", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    show("the program is there", by_id(cmd::PROG_GET_FD_BY_ID, program_id));
    let again = bpf(cmd::MAP_GET_FD_BY_ID, &mut Attr::new().with(attr::id::START_ID, map_id)).unwrap_or(-1);
    let key = [1u8, 2, 3, 4];
    show("used by its id", element(again, cmd::MAP_UPDATE_ELEM, Some(&key), &mut [9; 12], 0));
    close(program);
    wait_until("program gone", || by_id(cmd::PROG_GET_FD_BY_ID, program_id) == Err(Errno::ENOENT));
    show("a descriptor keeps the map", by_id(cmd::MAP_GET_FD_BY_ID, map_id));
    close(again);
    wait_until("map gone", || by_id(cmd::MAP_GET_FD_BY_ID, map_id) == Err(Errno::ENOENT));
    let mapped = show_fd("mapped", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 512, 1 << 10)));
    let mapped_id = id_of(mapped);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, mapped as i32, 0) };
    close(mapped);
    show("a mapping keeps it", by_id(cmd::MAP_GET_FD_BY_ID, mapped_id));
    // SAFETY: unmaps what was just mapped.
    unsafe { libc::munmap(at, 4096) };
    wait_until("mapped gone", || by_id(cmd::MAP_GET_FD_BY_ID, mapped_id) == Err(Errno::ENOENT));
    // Many descriptions closed at the same moment: no close may be missed.
    let many = show_fd("many", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 5, 0)));
    let many_id = id_of(many);
    let open = |_: i32| bpf(cmd::MAP_GET_FD_BY_ID, &mut Attr::new().with(attr::id::START_ID, many_id)).unwrap_or(-1);
    let all: Vec<i64> = (0..100).map(open).collect();
    close(many);
    // SAFETY: closes the scenario's own descriptors.
    all.iter().for_each(|fd| close(*fd));
    wait_until("many gone", || by_id(cmd::MAP_GET_FD_BY_ID, many_id) == Err(Errno::ENOENT));
    let cut = show_fd("cut", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 512, 1 << 10)));
    for bytes in [0, 1 << 20] {
        // SAFETY: takes numbers.
        println!("{MARK}resized: {}", unsafe { libc::ftruncate(cut as i32, bytes) });
    }
    show("not cut", element(cut, cmd::MAP_LOOKUP_ELEM, Some(&[0; 4]), &mut [0; 8], 0));
    let flags = show_fd("flags", bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 5, 0)));
    // SAFETY: takes no memory.
    println!("{MARK}close on exec: {}", unsafe { libc::fcntl(flags as i32, libc::F_GETFD) });
}

/// Runs `child` in a forked process; its exit code.
pub(crate) fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, and ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child and writes the status.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            libc::WEXITSTATUS(status)
        }
    }
}

pub(crate) fn children_and_duplicates_share_descriptors() {
    let map = show_fd("map", bpf(cmd::MAP_CREATE, &mut create(map_type::HASH, 4, 8, 4, 0)));
    let program = show_fd("program", bpf(cmd::PROG_LOAD, &mut load_attr(prog_type::KPROBE, &[MOV_R0_0, EXIT])));
    let (key, mut value) = (7u32.to_ne_bytes(), [0u8; 8]);
    let code = forked(|| element(map, cmd::MAP_UPDATE_ELEM, Some(&key), &mut [5; 8], 1).map_or_else(|e| e.0, |_| 0));
    println!("{MARK}a child updates: {code}");
    show("the parent sees it", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    println!("{MARK}  {value:?}");
    let code = forked(|| {
        close(map);
        element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut [0; 8], 0).map_or_else(|e| e.0, |_| 0)
    });
    println!("{MARK}a child that closed it: {code}");
    show("the parent has it still", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    let code = forked(|| {
        let id = Attr::new().with(attr::info::BPF_FD, program as u64).with(attr::info::INFO_LEN, 0);
        bpf(cmd::OBJ_GET_INFO_BY_FD, &mut id.clone()).map_or_else(|e| e.0, |_| 0)
    });
    println!("{MARK}a child asks for the program: {code}");
    for fd in [map, program] {
        // SAFETY: takes numbers.
        let twin = i64::from(unsafe { libc::dup2(fd as i32, 200) });
        show(
            "info by a duplicate",
            bpf(cmd::OBJ_GET_INFO_BY_FD, &mut Attr::new().with(attr::info::BPF_FD, twin as u64)),
        );
        close(twin);
        show("of a closed one", bpf(cmd::OBJ_GET_INFO_BY_FD, &mut Attr::new().with(attr::info::BPF_FD, twin as u64)));
    }
    close(map);
    show("map closed", element(map, cmd::MAP_LOOKUP_ELEM, Some(&key), &mut value, 0));
    close(program);
}

/// Helpers that programs of a type may call: no verifier names the function in its refusal then.
pub(crate) fn helpers_may_be_called() {
    use attr::prog_load as p;
    let (gpl, free) = (c"GPL", c"BSD");
    for (kind, license) in [
        (prog_type::KPROBE, gpl),
        (prog_type::KPROBE, free),
        (prog_type::SOCKET_FILTER, gpl),
        (prog_type::SOCKET_FILTER, free),
        (prog_type::TRACEPOINT, gpl),
        (prog_type::PERF_EVENT, gpl),
    ] {
        let helpers = (1..250u32).filter(|number| {
            let mut log = [0u8; 4096];
            let insns = [0x85 | u64::from(*number) << 32, MOV_R0_0, EXIT];
            let attr = load_attr(kind, &insns).with(p::LICENSE, address(license.to_bytes_with_nul()));
            let attr = attr.with(p::LOG_LEVEL, 1).with(p::LOG_SIZE, log.len() as u64);
            let loaded = bpf(cmd::PROG_LOAD, &mut attr.with(p::LOG_BUF, log.as_mut_ptr() as u64));
            loaded.into_iter().for_each(close);
            let text = String::from_utf8_lossy(&log);
            let unknown =
                ["cannot use helper", "unknown func", "invalid func", "GPL"].iter().any(|what| text.contains(what));
            loaded.is_ok() || !unknown
        });
        let names = helpers.map(|number| ring3_uapi::helper::name(number).unwrap_or("?"));
        println!("{MARK}{}", names.collect::<Vec<_>>().join(" "));
    }
}

/// Types of maps have different shapes; the errors of the one that is created, or of the last one.
fn any_shape(kind: u32, array: i64, types: i64) -> Result<i64, Errno> {
    use attr::map_create as m;
    let sizes = [(4, 8, 3, 0), (0, 8, 3, 0), (8, 8, 3, 1), (0, 0, 4096, 0), (4, 4, 3, 0), (4, 16, 3, 0)];
    let plain = sizes.map(|(key, value, entries, flags)| create(kind, key, value, entries, flags));
    let outer = create(kind, 4, 4, 3, 0).with(m::INNER_MAP_FD, array as u64);
    let typed = create(kind, 4, 4, 0, 1).with(m::BTF_FD, types as u64);
    let typed = typed.with(m::BTF_KEY_TYPE_ID, 1).with(m::BTF_VALUE_TYPE_ID, 1);
    let mut outcome = Err(Errno::EINVAL);
    for mut attr in plain.into_iter().chain([outer, typed]) {
        outcome = outcome.or_else(|_| bpf(cmd::MAP_CREATE, &mut attr));
    }
    outcome
}

/// Everything that a support table could have a row for: whether it can be had. (What a command says of no arguments differs
/// from command to command; the server's log tells whether it knows it.)
pub(crate) fn everything_is_asked_for() {
    use attr::prog_load as p;
    const SLEEPABLE: u64 = 1 << 4;
    for command in (0..100).filter(|command| cmd::name(*command).is_some()) {
        let _ = bpf(command, &mut Attr::new());
    }
    let array = bpf(cmd::MAP_CREATE, &mut create(map_type::ARRAY, 4, 8, 3, 0)).unwrap_or(-1);
    let types = load_btf(&btf_blob(&[], b"")).unwrap_or(-1);
    for (kind, name) in (1..100).filter_map(|kind| Some((kind, map_type::name(kind)?))) {
        close(show_fd(name, any_shape(kind, array, types)));
    }
    let mut kinds = vec![];
    for (kind, name) in (1..100).filter_map(|kind| Some((kind, prog_type::name(kind)?))) {
        let load = |flags| bpf(cmd::PROG_LOAD, &mut asking(kind, &[MOV_R0_0, EXIT]).with(p::PROG_FLAGS, flags));
        let (outcome, flags) = load(0).map_or_else(|_| (load(SLEEPABLE), SLEEPABLE), |fd| (Ok(fd), 0));
        kinds.extend(outcome.map(|_| (kind, flags)));
        close(show_fd(name, outcome));
    }
    for (number, name) in (1..1000u32).filter_map(|number| Some((number, ring3_uapi::helper::name(number)?))) {
        let known = kinds.iter().any(|(kind, flags)| {
            let mut log = [0u8; 4096];
            let insns = [0x85 | u64::from(number) << 32, MOV_R0_0, EXIT];
            let attr = asking(*kind, &insns).with(p::LOG_LEVEL, 1).with(p::LOG_SIZE, log.len() as u64);
            let attr = attr.with(p::PROG_FLAGS, *flags);
            let loaded = bpf(cmd::PROG_LOAD, &mut attr.with(p::LOG_BUF, log.as_mut_ptr() as u64));
            loaded.into_iter().for_each(close);
            let text = String::from_utf8_lossy(&log);
            loaded.is_ok()
                || !["cannot use helper", "unknown func", "invalid func"].iter().any(|no| text.contains(no))
        });
        println!("{MARK}bpf_{name}: {}", if known { "0" } else { "EINVAL" });
    }
}

/// A program of a type, attached to something that there is where the type wants that.
fn asking(kind: u32, insns: &[u64]) -> Attr {
    use attr::prog_load as p;
    let attr = load_attr(kind, insns);
    if kind != prog_type::TRACING {
        return attr;
    }
    // (At a function's end a program may ask for most.)
    let id = kernel_type(btf_kind::FUNC, "__x64_sys_close");
    attr.with(p::EXPECTED_ATTACH_TYPE, attach_type::TRACE_FEXIT.into()).with(p::ATTACH_BTF_ID, id)
}

/// What ring3 knowingly does not do: only that it says so. Not compared.
pub(crate) fn the_unsupported_is_refused() {
    let commands = [cmd::PROG_ATTACH, cmd::LINK_UPDATE, cmd::ITER_CREATE, 1000];
    for command in commands {
        let name = cmd::name(command).unwrap_or("unknown");
        show(name.trim_start_matches("BPF_"), bpf(command, &mut Attr::new()));
    }
    for kind in [map_type::SOCKMAP, map_type::CGROUP_STORAGE, map_type::REUSEPORT_SOCKARRAY] {
        let name = map_type::name(kind).unwrap_or("unknown");
        let made = bpf(cmd::MAP_CREATE, &mut create(kind, 4, 4, 4, 0));
        show_fd(name.trim_start_matches("BPF_MAP_TYPE_"), made);
    }
    for kind in [prog_type::LSM, prog_type::CGROUP_SKB] {
        let name = prog_type::name(kind).unwrap_or("unknown");
        let loaded = bpf(cmd::PROG_LOAD, &mut load_attr(kind, &[MOV_R0_0, EXIT]));
        show_fd(name.trim_start_matches("BPF_PROG_TYPE_"), loaded);
    }
}
