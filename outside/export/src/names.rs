//! Names that this machine has for numbers: functions of the kernel, cgroups, devices, network interfaces, PCI.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CGROUPS: &str = "/sys/fs/cgroup";
const KERNEL_SYMBOLS: &str = "/proc/kallsyms";
const PCI_FILES: [&str; 2] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];
/// What is asked for in vain is not looked for again within this time.
const REFRESH: Duration = Duration::from_secs(10);

/// What was found, for the next time.
#[derive(Debug, Default)]
pub(crate) struct Names {
    cgroups: BTreeMap<u64, String>,
    /// Cgroups that were gone already. (Their numbers are used once.)
    unknown_cgroups: BTreeSet<u64>,
    functions: BTreeMap<u64, String>,
    functions_read: Option<Instant>,
    pci: Option<Pci>,
}

impl Names {
    /// The path of a cgroup.
    pub(crate) fn cgroup(&mut self, id: u64) -> String {
        if !self.cgroups.contains_key(&id) && self.unknown_cgroups.insert(id) {
            find_cgroups(&cgroup_root(), &mut self.cgroups);
        }
        self.cgroups.get(&id).cloned().unwrap_or_else(|| format!("unknown_cgroup_id:{id}"))
    }

    /// The kernel's function that begins at an address.
    pub(crate) fn function_at(&mut self, address: u64) -> String {
        if !self.functions.contains_key(&address) {
            self.read_functions();
        }
        self.functions.get(&address).cloned().unwrap_or_else(|| format!("unknown_addr:{address:#x}"))
    }

    /// The kernel's function that an address is in, or behind.
    pub(crate) fn function_around(&mut self, address: u64) -> String {
        if self.functions.is_empty() {
            self.read_functions();
        }
        self.functions.range(..=address).next_back().map_or_else(|| "??".to_owned(), |(_, name)| name.clone())
    }

    fn read_functions(&mut self) {
        if self.functions_read.is_some_and(|when| when.elapsed() < REFRESH) {
            return;
        }
        self.functions_read = Some(Instant::now());
        let text = std::fs::read_to_string(KERNEL_SYMBOLS).unwrap_or_default();
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            // (Without the right to see them, all addresses are 0.)
            (address != 0).then_some((address, words.nth(1)?.to_owned()))
        };
        // (Of several names the first one.)
        self.functions = text.lines().rev().filter_map(parse).collect();
    }

    /// The name of a network interface.
    pub(crate) fn interface(&mut self, number: u32) -> String {
        let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        let is_it = |entry: &std::fs::DirEntry| {
            std::fs::read_to_string(entry.path().join("ifindex")).is_ok_and(|text| text.trim() == number.to_string())
        };
        let found = entries.into_iter().find(is_it);
        found.map_or_else(|| format!("unknown:{number}"), |entry| entry.file_name().to_string_lossy().into_owned())
    }

    /// The name of a block device, by the kernel's number for processes (`new_encode_dev`).
    pub(crate) fn device(&mut self, number: u32) -> String {
        let (major, minor) = (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
        let text = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
        let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
        let (wanted_major, wanted_minor) = (major.to_string(), minor.to_string());
        let found = rows
            .into_iter()
            .find(|row| row.len() == 4 && row[0] == wanted_major && row[1] == wanted_minor)
            .map(|row| row[3].to_owned());
        found.unwrap_or_else(|| format!("unknown:{major}:{minor}"))
    }

    fn pci(&mut self) -> &Pci {
        self.pci.get_or_insert_with(|| {
            let text = PCI_FILES.iter().find_map(|path| std::fs::read(path).ok());
            text.map_or_else(Pci::default, |text| Pci::parse(&String::from_utf8_lossy(&text)))
        })
    }

    fn pci_name(&mut self, kind: &str, key: &str) -> String {
        let pci = self.pci();
        if pci.names.is_empty() {
            return "missing pci.ids db".to_owned();
        }
        let shown = key.trim_start_matches(['C', ' ']).replace('/', "");
        pci.names.get(key).cloned().unwrap_or_else(|| format!("unknown pci {kind}: 0x{shown}"))
    }

    /// The name of a class of PCI devices.
    pub(crate) fn pci_class(&mut self, number: u64) -> String {
        self.pci_name("class", &format!("C {number:02x}"))
    }

    /// The name of a subclass, by the numbers of class and subclass, a byte each.
    pub(crate) fn pci_subclass(&mut self, number: u64) -> String {
        let (class, subclass) = (format!("C {:02x}", number >> 8), format!("{:02x}", number & 0xff));
        let key = format!("{class}/{subclass}");
        let pci = self.pci();
        if pci.names.is_empty() || pci.names.contains_key(&key) || !pci.names.contains_key(&class) {
            let is_known = self.pci().names.contains_key(&key);
            return if is_known { self.pci_name("subclass", &key) } else { self.pci_name("class", &class) };
        }
        format!("unknown pci subclass: 0x{subclass} (class 0x{})", &class[2..])
    }

    /// The name of a device, by the numbers of vendor and device, two bytes each.
    pub(crate) fn pci_device(&mut self, number: u64) -> String {
        self.pci_name("device", &format!("{:04x}/{:04x}", number >> 16, number & 0xffff))
    }

    /// The name of a vendor.
    pub(crate) fn pci_vendor(&mut self, number: u64) -> String {
        self.pci_name("vendor", &format!("{number:04x}"))
    }
}

/// The names in a file `pci.ids`: `8086`, `8086/1000`, `C 01`, `C 01/06`.
#[derive(Debug, Default)]
struct Pci {
    names: BTreeMap<String, String>,
}

impl Pci {
    fn parse(text: &str) -> Pci {
        let (mut names, mut above) = (BTreeMap::new(), String::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let is_below = line.starts_with('\t');
            // (Subsystems, and what programs a device has, are two levels below.)
            let Some((number, name)) = line.trim_start_matches('\t').split_once("  ") else { continue };
            if line.starts_with("\t\t") {
                continue;
            }
            if is_below {
                names.insert(format!("{above}/{number}"), name.to_owned());
            } else {
                above = number.to_owned();
                names.insert(above.clone(), name.to_owned());
            }
        }
        Pci { names }
    }
}

/// Where the hierarchy is of which `bpf_get_current_cgroup_id` speaks (version 2): not all machines have it at the usual place.
fn cgroup_root() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let found = rows.find(|row| row.get(2) == Some(&"cgroup2"));
    found.map_or_else(|| PathBuf::from(CGROUPS), |row| PathBuf::from(row[1]))
}

/// Cgroups by the number of their directory. What ends meanwhile is left out.
fn find_cgroups(directory: &Path, found: &mut BTreeMap<u64, String>) {
    let Ok(meta) = directory.symlink_metadata() else { return };
    found.entry(meta.ino()).or_insert_with(|| directory.display().to_string());
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find_cgroups(&entry.path(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_numbers_have_the_names_of_the_file() {
        let text = "# comment\n8086  Intel Corporation\n\t1000  82542 Gigabit\n\t\t0e11 b0df  NC6132\nC 01  Mass storage controller\n\
                    \t08  Non-Volatile memory controller\n\t\t02  NVM Express\n";
        let mut names = Names { pci: Some(Pci::parse(text)), ..Names::default() };
        assert_eq!(names.pci_vendor(0x8086), "Intel Corporation");
        assert_eq!(names.pci_vendor(0xbeef), "unknown pci vendor: 0xbeef");
        assert_eq!(names.pci_device(0x8086_1000), "82542 Gigabit");
        assert_eq!(names.pci_device(0xdead_beef), "unknown pci device: 0xdeadbeef");
        assert_eq!(names.pci_class(1), "Mass storage controller");
        assert_eq!(names.pci_class(253), "unknown pci class: 0xfd");
        assert_eq!(names.pci_subclass(0x108), "Non-Volatile memory controller");
        assert_eq!(names.pci_subclass(0x10b), "unknown pci subclass: 0x0b (class 0x01)");
        assert_eq!(names.pci_subclass(0xfd00), "unknown pci class: 0xfd");
    }

    #[test]
    fn the_cgroup_of_the_root_has_a_name() {
        let root = cgroup_root();
        let Ok(meta) = root.metadata() else {
            println!("SKIPPED: there is no {}", root.display());
            return;
        };
        assert_eq!(Names::default().cgroup(meta.ino()), root.display().to_string());
    }

    #[test]
    fn addresses_have_the_function_that_they_are_in() {
        let functions = [(0x1000, "first".to_owned()), (0x2000, "second".to_owned())].into();
        let mut names = Names { functions, functions_read: Some(Instant::now()), ..Names::default() };
        assert_eq!(
            (names.function_at(0x1000), names.function_at(0x1001)),
            ("first".into(), "unknown_addr:0x1001".into())
        );
        assert_eq!((names.function_around(0x1fff), names.function_around(0xfff)), ("first".into(), "??".into()));
    }
}
