//! Decoders: what makes text of the bytes of a key, as ebpf_exporter's of the same names (README.md of v2, "Decoders").

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use regex::bytes::Regex;
use ring3_uapi::errno::Errno;
use serde_saphyr::Location;

use crate::config::{DecoderSettings, Label};
use crate::names::Names;

/// Makes bytes of bytes; the last one of a label makes its value.
#[derive(Debug)]
pub enum Decoder {
    /// A number of a cgroup, as text, to its path.
    Cgroup,
    /// A name of the DNS in wire format.
    Dname,
    /// An error's number, as text, to its name.
    Errno,
    /// Hexadecimal digits.
    Hex,
    /// The number of a network interface (u32) to its name.
    Ifname,
    /// An IPv4 or IPv6 address.
    InetIp,
    /// Addresses of the kernel (u64), the first 0 is the end, to the names of functions, one a line.
    Kstack,
    /// An address of the kernel (u64) to the name of the function that begins there.
    Ksym,
    /// A device's number (u32) to its name.
    MajorMinor,
    /// Numbers of PCI, as text, to names.
    Pci(PciNumber),
    /// Lets what matches pass, and keeps the group, if there is one.
    Regexp(Vec<Regex>),
    /// Texts to texts.
    StaticMap {
        /// The texts.
        map: BTreeMap<Vec<u8>, String>,
        /// Others are themselves.
        allow_unknown: bool,
    },
    /// What is before the first byte 0.
    String,
    /// A system call's number, as text, to its name.
    Syscall,
    /// A number of 1, 2, 4 or 8 bytes, as the machine has it.
    Uint,
}

/// Which number of PCI.
#[derive(Clone, Copy, Debug)]
pub enum PciNumber {
    /// Of a class.
    Class,
    /// Of a vendor and its device.
    Device,
    /// Of a class and its subclass.
    Subclass,
    /// Of a vendor.
    Vendor,
}

/// Why there is no text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// It is not wanted.
    Skipped,
    /// The bytes are not what the decoder takes.
    Wrong(String),
}

const NAMES: &str = "cgroup, dname, errno, hex, ifname, inet_ip, kstack, ksym, majorminor, pci_class, pci_device, pci_subclass, \
                     pci_vendor, regexp, static_map, string, syscall, uint";

impl Decoder {
    pub(crate) fn new(settings: &DecoderSettings) -> Result<Decoder, (Location, String)> {
        let place = settings.name.referenced;
        let name = settings.name.value.as_str();
        let fail = |why: String| Err((place, why));
        if settings.regexps.is_some() != (name == "regexp") {
            return fail(format!("decoder {name}: `regexps` are those of the decoder regexp, which wants them"));
        }
        if settings.static_map.is_some() != (name == "static_map") || settings.allow_unknown && name != "static_map" {
            return fail(format!(
                "decoder {name}: `static_map`, which is wanted, and `allow_unknown` are those of the decoder static_map"
            ));
        }
        Ok(match name {
            "cgroup" => Decoder::Cgroup,
            "dname" => Decoder::Dname,
            "errno" => Decoder::Errno,
            "hex" => Decoder::Hex,
            "ifname" => Decoder::Ifname,
            "inet_ip" => Decoder::InetIp,
            "kstack" => Decoder::Kstack,
            "ksym" => Decoder::Ksym,
            "majorminor" => Decoder::MajorMinor,
            "pci_class" => Decoder::Pci(PciNumber::Class),
            "pci_device" => Decoder::Pci(PciNumber::Device),
            "pci_subclass" => Decoder::Pci(PciNumber::Subclass),
            "pci_vendor" => Decoder::Pci(PciNumber::Vendor),
            "regexp" => Decoder::Regexp(compile(settings)?),
            "static_map" => {
                let pairs = settings.static_map.iter().flatten();
                let map = pairs.map(|(key, value)| (key.clone().into_bytes(), value.clone())).collect();
                Decoder::StaticMap { map, allow_unknown: settings.allow_unknown }
            }
            "string" => Decoder::String,
            "syscall" => Decoder::Syscall,
            "uint" => Decoder::Uint,
            _ => return fail(format!("there is no decoder `{name}`; the decoders are {NAMES}")),
        })
    }

    fn decode(&self, bytes: &[u8], names: &mut Names) -> Result<Vec<u8>, Undecoded> {
        let text = match self {
            Decoder::Cgroup => names.cgroup(number(bytes)?),
            Decoder::Dname => return Ok(domain(bytes)),
            Decoder::Errno => error_name(number(bytes)?),
            Decoder::Hex => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            Decoder::Ifname => names.interface(word(bytes)?),
            Decoder::InetIp => address(bytes),
            Decoder::Kstack => {
                let addresses = bytes.chunks_exact(8).map(|one| u64::from_ne_bytes(one.try_into().expect("8 bytes")));
                let stack: Vec<String> =
                    addresses.take_while(|at| *at != 0).map(|at| names.function_around(at)).collect();
                stack.join("\n")
            }
            Decoder::Ksym => names.function_at(long(bytes)?),
            Decoder::MajorMinor => names.device(word(bytes)?),
            Decoder::Pci(which) => {
                let number = number(bytes)?;
                match which {
                    PciNumber::Class => names.pci_class(number),
                    PciNumber::Device => names.pci_device(number),
                    PciNumber::Subclass => names.pci_subclass(number),
                    PciNumber::Vendor => names.pci_vendor(number),
                }
            }
            Decoder::Regexp(patterns) => return matched(patterns, bytes),
            Decoder::StaticMap { map, allow_unknown } => match map.get(bytes) {
                Some(text) => text.clone(),
                None if *allow_unknown => return Ok(bytes.to_vec()),
                None => format!("unknown:{}", String::from_utf8_lossy(bytes)),
            },
            Decoder::String => return Ok(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()),
            Decoder::Syscall => syscall_name(number(bytes)?),
            Decoder::Uint => unsigned(bytes)?.to_string(),
        };
        Ok(text.into_bytes())
    }
}

/// The values of labels that a key has.
///
/// # Errors
/// The key is not wanted, or a decoder does not take its part.
pub(crate) fn values(key: &[u8], labels: &[Label], names: &mut Names) -> Result<Vec<String>, Undecoded> {
    let bytes: usize = labels.iter().map(Label::bytes).sum();
    if bytes != key.len() {
        let why = format!("a key of {} bytes, and the labels have {bytes}", key.len());
        return Err(Undecoded::Wrong(why));
    }
    let (mut values, mut rest) = (vec![], key);
    for label in labels {
        let (part, behind) = rest.split_at(label.bytes());
        rest = behind;
        let mut value = part[..label.size].to_vec();
        for decoder in &label.decoders {
            value = decoder.decode(&value, names).map_err(|why| match why {
                Undecoded::Wrong(why) => Undecoded::Wrong(format!("label {}: {why}", label.name.value)),
                skipped => skipped,
            })?;
        }
        values.push(String::from_utf8_lossy(&value).into_owned());
    }
    Ok(values)
}

fn compile(settings: &DecoderSettings) -> Result<Vec<Regex>, (Location, String)> {
    let patterns = settings.regexps.iter().flatten().map(|pattern| {
        let text = &pattern.value;
        let fail = |why: String| (pattern.referenced, format!("regexp `{text}`: {why}"));
        let compiled = Regex::new(text).map_err(|error| fail(error.to_string()))?;
        // (Those with more would never match in ebpf_exporter.)
        if compiled.captures_len() > 2 {
            return Err(fail("it has more than one group; write (?:...) where none is wanted".to_owned()));
        }
        Ok(compiled)
    });
    patterns.collect()
}

fn matched(patterns: &[Regex], bytes: &[u8]) -> Result<Vec<u8>, Undecoded> {
    let found = patterns.iter().find_map(|pattern| Some((pattern.captures_len(), pattern.captures(bytes)?)));
    let (groups, captures) = found.ok_or(Undecoded::Skipped)?;
    Ok(captures.get(groups - 1).map_or(vec![], |part| part.as_bytes().to_vec()))
}

fn wrong<T>(bytes: &[u8], wanted: &str) -> Result<T, Undecoded> {
    Err(Undecoded::Wrong(format!(
        "{wanted} is wanted, and there is `{}` ({} bytes)",
        bytes.escape_ascii(),
        bytes.len()
    )))
}

/// A number that another decoder has made text.
fn number(bytes: &[u8]) -> Result<u64, Undecoded> {
    let parsed = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.map_or_else(|| wrong(bytes, "a number in digits (let the decoder uint come first)"), Ok)
}

fn unsigned(bytes: &[u8]) -> Result<u64, Undecoded> {
    Ok(match *bytes {
        [byte] => byte.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => return wrong(bytes, "a number of 1, 2, 4 or 8 bytes"),
    })
}

fn word(bytes: &[u8]) -> Result<u32, Undecoded> {
    match bytes.first_chunk() {
        Some(word) => Ok(u32::from_ne_bytes(*word)),
        None => wrong(bytes, "a number of 4 bytes"),
    }
}

fn long(bytes: &[u8]) -> Result<u64, Undecoded> {
    match bytes.first_chunk() {
        Some(long) => Ok(u64::from_ne_bytes(*long)),
        None => wrong(bytes, "an address of 8 bytes"),
    }
}

fn domain(bytes: &[u8]) -> Vec<u8> {
    let (mut name, mut rest) = (vec![], bytes);
    while let Some((length, behind)) = rest.split_first() {
        let Some((part, behind)) = behind.split_at_checked(usize::from(*length)) else {
            // It is no such name.
            return bytes.to_vec();
        };
        name.push(b'.');
        name.extend_from_slice(part);
        rest = behind;
    }
    if name.is_empty() { b".".to_vec() } else { name[1..].to_vec() }
}

fn address(bytes: &[u8]) -> String {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Ipv4Addr::from(octets).to_string();
    }
    match <[u8; 16]>::try_from(bytes) {
        Ok(octets) => {
            let address = Ipv6Addr::from(octets);
            address.to_ipv4_mapped().map_or(address.to_string(), |mapped| mapped.to_string())
        }
        // (As Go's net.IP has it.)
        Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).fold("?".to_owned(), |text, byte| text + &byte),
    }
}

fn error_name(number: u64) -> String {
    const UNKNOWN: &str = "E?";
    /// (The table has the kernel's other name of 35.)
    const EDEADLK: u64 = 35;
    const EHWPOISON: u64 = 133;
    const ERRORS_MAX: u64 = EHWPOISON;
    match number {
        EDEADLK => "EDEADLK".to_owned(),
        EHWPOISON => "EHWPOISON".to_owned(),
        _ => match i32::try_from(number).map_or(UNKNOWN, |number| Errno(number).name()) {
            name if name != UNKNOWN && number <= ERRORS_MAX => name.to_owned(),
            _ => format!("unknown:{number}"),
        },
    }
}

/// System calls without events, and those whose events are called otherwise (`asm/unistd_64.h`).
const CALLS: &[(u64, &str)] = &[
    (4, "stat"),
    (5, "fstat"),
    (6, "lstat"),
    (40, "sendfile"),
    (63, "uname"),
    (134, "uselib"),
    (156, "_sysctl"),
    (166, "umount2"),
    (174, "create_module"),
    (177, "get_kernel_syms"),
    (178, "query_module"),
    (180, "nfsservctl"),
    (181, "getpmsg"),
    (182, "putpmsg"),
    (183, "afs_syscall"),
    (184, "tuxcall"),
    (185, "security"),
    (205, "set_thread_area"),
    (211, "get_thread_area"),
    (212, "lookup_dcookie"),
    (214, "epoll_ctl_old"),
    (215, "epoll_wait_old"),
    (236, "vserver"),
    (335, "uretprobe"),
    (336, "uprobe"),
];

fn syscall_name(number: u64) -> String {
    if let Some((_, name)) = CALLS.iter().find(|(known, _)| *known == number) {
        return (*name).to_owned();
    }
    let known = u32::try_from(number).ok().and_then(ring3_uapi::syscalls::by_number);
    known.map_or_else(|| format!("unknown_syscall:{number}"), |call| call.name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoders: &[Decoder], bytes: &[u8]) -> Result<String, Undecoded> {
        let mut names = Names::default();
        let start = Ok(bytes.to_vec());
        let result = decoders.iter().fold(start, |bytes, decoder| decoder.decode(&bytes?, &mut names));
        result.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn each_decoder_makes_text() {
        let is = |decoders: &[Decoder], bytes: &[u8], expected: &str| {
            assert_eq!(decoded(decoders, bytes).as_deref(), Ok(expected), "{decoders:?}");
        };
        is(&[Decoder::Uint], &[7], "7");
        is(&[Decoder::Uint], &258u16.to_ne_bytes(), "258");
        is(&[Decoder::Uint], &u64::MAX.to_ne_bytes(), "18446744073709551615");
        is(&[Decoder::String], b"one\0two", "one");
        is(&[Decoder::Hex], &[0xbe, 0xef, 0], "beef00");
        is(&[Decoder::Uint, Decoder::Errno], &2u64.to_ne_bytes(), "ENOENT");
        is(&[Decoder::Uint, Decoder::Errno], &0u64.to_ne_bytes(), "unknown:0");
        is(&[Decoder::Uint, Decoder::Errno], &524u64.to_ne_bytes(), "unknown:524");
        is(&[Decoder::Uint, Decoder::Syscall], &[0], "read");
        is(&[Decoder::Uint, Decoder::Syscall], &999u16.to_ne_bytes(), "unknown_syscall:999");
        is(&[Decoder::InetIp], &[1, 1, 1, 1], "1.1.1.1");
        is(&[Decoder::InetIp], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 8, 8, 8, 8], "8.8.8.8");
        is(&[Decoder::InetIp], &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "2001:db8::1");
        is(&[Decoder::InetIp], &[1, 2, 3], "?010203");
        is(&[Decoder::String, Decoder::Dname], b"\x07example\x03com\0", "example.com");
        is(&[Decoder::Dname], b"", ".");
        is(&[Decoder::Dname], b"\x7fexample", "\x7fexample");
        is(&[Decoder::Ifname], &1u32.to_ne_bytes(), "lo");
        is(&[Decoder::MajorMinor], &0xfff_u32.to_ne_bytes(), "unknown:15:255");
        is(&[Decoder::Ksym], &1u64.to_ne_bytes(), "unknown_addr:0x1");
        is(&[Decoder::Uint, Decoder::Cgroup], &u64::MAX.to_ne_bytes(), "unknown_cgroup_id:18446744073709551615");
        assert!(matches!(decoded(&[Decoder::Uint], &[1, 2, 3]), Err(Undecoded::Wrong(_))));
        assert!(matches!(decoded(&[Decoder::Errno], b"two"), Err(Undecoded::Wrong(_))));
        assert!(matches!(decoded(&[Decoder::Ksym], b"two"), Err(Undecoded::Wrong(_))));
    }

    #[test]
    fn what_matches_no_pattern_is_skipped() {
        let patterns = |texts: &[&str]| {
            vec![Decoder::Regexp(texts.iter().map(|text| Regex::new(text).expect("a pattern")).collect())]
        };
        let some = patterns(&["^(kswapd).*$", "^systemd-journal$"]);
        assert_eq!(decoded(&some, b"kswapd0").as_deref(), Ok("kswapd"));
        assert_eq!(decoded(&some, b"systemd-journal").as_deref(), Ok("systemd-journal"));
        assert_eq!(decoded(&some, b"bash"), Err(Undecoded::Skipped));
        assert_eq!(decoded(&patterns(&["^b(x)?"]), b"bash").as_deref(), Ok(""));
    }

    #[test]
    fn system_calls_have_the_names_of_the_header() {
        let Ok(text) = std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") else {
            println!("SKIPPED: there is no asm/unistd_64.h (Debian: linux-libc-dev)");
            return;
        };
        let lines = text.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
        let mut compared = 0;
        for (name, number) in lines {
            assert_eq!(syscall_name(number.parse().expect("a number")), name);
            compared += 1;
        }
        assert!(compared > 300);
    }
}
