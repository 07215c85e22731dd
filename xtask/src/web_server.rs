//! nginx and wrk: where their programs are, and a configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use crate::bench::output;

/// Programs of Debian's packages.
pub(crate) struct Packages {
    /// Where packages are unpacked that are not installed: to install nginx would start one.
    unpacked: PathBuf,
}

impl Packages {
    pub(crate) fn in_directory(build: &Path) -> Packages {
        Packages { unpacked: build.join("debian") }
    }

    /// The installed program, or the unpacked one.
    pub(crate) fn program(&self, path: &str) -> Option<PathBuf> {
        [PathBuf::from("/").join(path), self.unpacked.join(path)].into_iter().find(|path| path.exists())
    }

    /// Where unpacked libraries are, if there are any.
    pub(crate) fn libraries(&self) -> Option<PathBuf> {
        let directory = self.unpacked.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        directory.exists().then_some(directory)
    }

    pub(crate) fn unpack(&self) -> Result<(), String> {
        let directory = &self.unpacked;
        for (path, packages) in [("usr/sbin/nginx", &["nginx"][..]), ("usr/bin/wrk", &["wrk", "libluajit-5.1-2"][..])]
        {
            if self.program(path).is_some() {
                continue;
            }
            eprintln!("unpacking {} in {}", packages.join(" and "), directory.display());
            std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            let mut download = Command::new("apt-get");
            download.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(packages).current_dir(directory);
            output(&mut download).map_err(|why| format!("{why}: install {}", packages.join(" ")))?;
            let each = "for package in *.deb; do dpkg -x $package . && rm $package || exit; done";
            output(Command::new("sh").args(["-c", each]).current_dir(directory))?;
        }
        Ok(())
    }
}

/// A configuration with so many workers, for these statements before all others, and these in `http`.
pub(crate) fn configuration(directory: &str, workers: u32, before: &str, http: &str) -> String {
    let user = if geteuid().is_root() { "user root;\n" } else { "" };
    let mut text = format!(
        "{before}{user}daemon off;\nworker_processes {workers};\npid {directory}/pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  keepalive_requests 1000000000;\n"
    );
    for what in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("  {what}_temp_path {directory}/{what};\n");
    }
    text + http + "}\n"
}
