//! The types of the running kernel and of its modules: objects that exist before any loader, and stay.

use std::path::Path;
use std::sync::Arc;

use ring3_btf::KERNEL_BTF;
use ring3_uapi::Errno;

/// The id of the kernel's own types.
pub const VMLINUX_BTF_ID: u32 = 1;

/// A file with types, which is read whenever somebody wants them.
pub struct KernelTypes {
    /// Id.
    pub id: u32,
    /// `vmlinux`, or a module's name.
    pub name: String,
}

impl KernelTypes {
    /// All that there are, the kernel's first.
    pub(super) fn all() -> Vec<Arc<KernelTypes>> {
        let kernel = Path::new(KERNEL_BTF);
        let own = kernel.file_name().unwrap_or_default();
        let files =
            kernel.parent().and_then(|directory| std::fs::read_dir(directory).ok()).into_iter().flatten().flatten();
        let mut names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (own != name.as_str(), name.clone()));
        (VMLINUX_BTF_ID..).zip(names).map(|(id, name)| Arc::new(KernelTypes { id, name })).collect()
    }

    /// How many bytes there are.
    pub fn size(&self) -> Result<u32, Errno> {
        let found = std::fs::metadata(self.path()).map_err(|_| Errno::ENOENT)?;
        u32::try_from(found.len()).map_err(|_| Errno::ENOENT)
    }

    /// Those of a module refer to the kernel's.
    pub fn bytes(&self) -> Result<Vec<u8>, Errno> {
        std::fs::read(self.path()).map_err(|_| Errno::ENOENT)
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new(KERNEL_BTF).with_file_name(&self.name)
    }
}
