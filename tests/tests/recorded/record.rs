//! What `tests/programs/record.c` writes: a line of JSON for each program that was loaded.

use std::path::Path;

use ring3_isa::{Insn, encode};
use ring3_judge::PolicySet;
use ring3_tests::hexadecimal;
use ring3_uapi::bpf::{is_gpl_compatible, map_type};
use ring3_uapi::flags::BPF_F_SLEEPABLE;
use ring3_verifier::{Context, InnerShape, Input, MapShape, Policy, Report, Verified, verify};
use serde_json::Value;

/// A map that a program names.
struct Map {
    fd: i64,
    /// Its index in `fd_array`; -1 if it is named by its descriptor.
    index: i64,
    shape: MapShape,
    /// Its only value, if nobody can change it any more.
    constant: Option<Vec<u8>>,
}

/// What the kernel says of a program.
pub(crate) struct Kernel {
    /// 0 if it accepts.
    pub(crate) errno: i32,
    /// The last line of its log if it refuses.
    pub(crate) why: String,
    pub(crate) usec: u64,
    pub(crate) processed: u64,
}

/// A program that was loaded.
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) prog_type: u32,
    pub(crate) insns: Vec<Insn>,
    pub(crate) kernel: Kernel,
    attach_type: u32,
    attach_btf_id: u32,
    gpl_compatible: bool,
    flags: u64,
    maps: Vec<Map>,
}

fn number(value: &Value, name: &str) -> i64 {
    value[name].as_i64().unwrap_or_else(|| panic!("a number {name}: {value}"))
}

fn number32(value: &Value, name: &str) -> u32 {
    u32::try_from(number(value, name)).expect("32 bits")
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

impl Map {
    fn parse(value: &Value, slot: usize) -> Map {
        let alone = |value: &Value| InnerShape {
            map_type: number32(value, "type"),
            key_size: number32(value, "key_size"),
            value_size: number32(value, "value_size"),
            max_entries: number32(value, "max_entries"),
            map_flags: number32(value, "flags"),
            lock: None,
        };
        let shape = MapShape { slot: slot as u32, inner: value.get("inner").map(alone), ..alone(value).shape() };
        let constant = value.get("constant").and_then(Value::as_str).map(hexadecimal);
        assert!(constant.is_none() || shape.map_type == map_type::ARRAY);
        Map { fd: number(value, "fd"), index: number(value, "index"), shape, constant }
    }
}

impl Record {
    fn parse(line: &str) -> Record {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let insns = hexadecimal(value["insns"].as_str().expect("instructions"));
        let maps = value["maps"].as_array().expect("maps").iter().enumerate();
        Record {
            name: text(&value, "name"),
            prog_type: number32(&value, "prog_type"),
            insns: ring3_isa::decode(&insns).expect("whole instructions"),
            kernel: Kernel {
                errno: number(&value, "errno") as i32,
                why: text(&value, "why"),
                usec: number(&value, "usec") as u64,
                processed: number(&value, "processed") as u64,
            },
            attach_type: number32(&value, "expected_attach_type"),
            attach_btf_id: number32(&value, "attach_btf_id"),
            gpl_compatible: is_gpl_compatible(&text(&value, "license")),
            flags: number(&value, "flags") as u64,
            maps: maps.map(|(slot, map)| Map::parse(map, slot)).collect(),
        }
    }

    /// Everything in a directory.
    pub(crate) fn read(directory: &Path) -> Vec<Record> {
        let files = std::fs::read_dir(directory).expect("the directory of a run").flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let texts = files.map(|path| std::fs::read_to_string(path).expect("what was recorded"));
        // Who is killed may have written half a line.
        let whole = |text: &str| text.rfind('\n').map_or(0, |end| end + 1);
        texts.flat_map(|text| text[..whole(&text)].lines().map(Record::parse).collect::<Vec<_>>()).collect()
    }

    /// What makes it another program than others: not its name, nor the numbers of its descriptors.
    pub(crate) fn identity(&self) -> Vec<u8> {
        let place = |insn: &Insn| {
            let named = insn.is_wide() && matches!(insn.src(), 1 | 2);
            let place = self.maps.iter().position(|map| map.index < 0 && map.fd == i64::from(insn.imm));
            match place.filter(|_| named) {
                Some(place) => Insn::new(insn.opcode, insn.dst(), insn.src(), insn.off, place as i32),
                None => *insn,
            }
        };
        let mut identity = encode(&self.insns.iter().map(place).collect::<Vec<_>>());
        let shapes: Vec<_> = self.maps.iter().map(|map| (map.shape, &map.constant)).collect();
        identity.extend(format!("{} {} {} {shapes:?}", self.prog_type, self.flags, self.attach_btf_id).bytes());
        identity
    }

    /// What it may do; `None` if its type's context is not known.
    pub(crate) fn policy(&self, policies: &PolicySet) -> Option<Policy> {
        let policy = policies.policy(self.prog_type, self.attach_type, self.attach_btf_id);
        (policy.context != Context::default()).then_some(policy)
    }

    /// Our own verdict.
    pub(crate) fn verify(&self, policies: &PolicySet, policy: &Policy, log_level: u32) -> Result<Verified, Report> {
        let shape = |found: Option<&Map>| found.map(|map| map.shape);
        verify(&Input {
            insns: &policies.renumbered(&self.insns),
            prog_type: self.prog_type,
            gpl_compatible: self.gpl_compatible,
            sleepable: self.flags & u64::from(BPF_F_SLEEPABLE) != 0,
            cpus: policies.processors(),
            policy: policy.clone(),
            log_level,
            lines: vec![],
            map_by_fd: &|fd| shape(self.maps.iter().find(|map| map.index < 0 && map.fd == i64::from(fd))),
            map_by_index: &|index| shape(self.maps.iter().find(|map| map.index == i64::from(index))),
            constant_value: &|slot| self.maps.get(slot as usize)?.constant.clone(),
        })
    }
}
