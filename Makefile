# ring3: the commands that a newcomer needs. Everything else is `cargo xtask`.
PREFIX ?= /usr/local
BINARY = $(or $(CARGO_TARGET_DIR),target)/release/ring3
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

all: build

# Debian packages that building, the demo and the tests need; installed only if missing.
PACKAGES = gcc g++ libc6-dev make clang libbpf-dev libelf-dev zlib1g-dev bpftool libbpf-tools bpftrace babeltrace2 musl-tools strace \
	valgrind bsdutils util-linux procps

deps:
	@missing=""; for p in $(PACKAGES); do \
		dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
		echo "installing:$$missing"; \
		if [ "$$(id -u)" = 0 ]; then sudo=""; elif command -v sudo >/dev/null; then sudo=sudo; else \
			echo "make: as root, run: apt-get install$$missing"; exit 1; fi; \
		$$sudo apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
	@command -v cargo >/dev/null || { echo "make: Rust is needed: https://rustup.rs"; exit 1; }

build: deps
	cargo build --release --package ring3-cli

demo: build
	cargo xtask demo

# (LLVM for the optimising tier, `ring3-llvm`, which is built only with `--features llvm`.)
test: PACKAGES += llvm-19-dev
# (bcc's tools, and what they compile their programs with.)
test: PACKAGES += bpfcc-tools linux-headers-amd64
# (To install nginx or redis-server starts one, except where a policy says no, as in containers.)
test: PACKAGES += $(if $(wildcard /usr/sbin/policy-rc.d),nginx nginx-dev redis-server)
test: deps
	cargo xtask ci

# (Python only for frida, the peer.)
bench: PACKAGES += python3 python3-venv
bench: build
	cargo xtask bench probe

# What needs no build of ring3: formatting, clippy, the laws, documentation, licenses of dependencies.
lint:
	cargo xtask lint

# Known vulnerabilities, too: needs cargo-deny and the network.
deny:
	cargo xtask deny

# The libraries by which C programs host extensions (outside/embed).
EMBED = $(or $(CARGO_TARGET_DIR),target)/embed

embed: deps
	cargo build --profile embed --package ring3-embed

install: build embed install-files install-embed-files

# (What was built is installed as it is: `make && sudo make install-files` needs no cargo for root.)
install-files:
	umask 022 && install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/ring3
	umask 022 && if [ -e $(BINARY)-llvm ]; then install -D -m 755 $(BINARY)-llvm $(DESTDIR)$(PREFIX)/libexec/ring3-llvm; fi
	umask 022 && mkdir -p $(DESTDIR)$(PREFIX)/include/ring3 && install -m 644 include/ring3/*.h $(DESTDIR)$(PREFIX)/include/ring3
	umask 022 && $(BINARY) share-files $(DESTDIR)$(PREFIX)/share

install-embed: embed install-embed-files

# (VERSION is the crate's; programs look for libring3.so.0, which the crate's build.rs has put into the library.)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
install-embed-files:
	umask 022 && install -D -m 644 outside/embed/include/ring3.h $(DESTDIR)$(PREFIX)/include/ring3.h
	umask 022 && install -D -m 755 $(EMBED)/libring3_embed.so $(DESTDIR)$(PREFIX)/lib/libring3.so.$(VERSION)
	umask 022 && install -D -m 644 $(EMBED)/libring3_embed.a $(DESTDIR)$(PREFIX)/lib/libring3.a
	ln -sf libring3.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libring3.so.0
	ln -sf libring3.so.0 $(DESTDIR)$(PREFIX)/lib/libring3.so
	umask 022 && mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig && sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
		outside/embed/ring3.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/ring3.pc

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/include/ring3.h $(DESTDIR)$(PREFIX)/lib/libring3.* $(DESTDIR)$(PREFIX)/lib/pkgconfig/ring3.pc
	rm -f $(DESTDIR)$(PREFIX)/bin/ring3 $(DESTDIR)$(PREFIX)/libexec/ring3-llvm $(DESTDIR)$(PREFIX)/include/ring3/*.h $(DESTDIR)$(PREFIX)/share/man/man1/ring3.1 $(DESTDIR)$(PREFIX)/share/man/man1/ring3-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/ring3 $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ring3 \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ring3.fish

# A Debian package: target/deb/ring3_VERSION_amd64.deb.
deb: build
	cargo xtask deb

clean:
	cargo clean
	$(MAKE) -C examples/malloc clean

.PHONY: all deps build demo test bench lint deny embed install install-files install-embed install-embed-files uninstall deb clean
