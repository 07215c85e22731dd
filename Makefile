# ring3: the commands that a newcomer needs. Everything else is `cargo xtask`.
PREFIX ?= /usr/local
BINARY = $(or $(CARGO_TARGET_DIR),target)/release/ring3
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

all: build

# Debian packages that building, the demo and the tests need; installed only if missing.
PACKAGES = gcc g++ libc6-dev make clang libbpf-dev libelf-dev zlib1g-dev bpftool libbpf-tools bpftrace musl-tools strace \
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

# (LLVM for the optimising tier, which a build has only with `--features llvm`.)
test: PACKAGES += llvm-19-dev
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

install: build install-files

# (What was built is installed as it is: `make && sudo make install-files` needs no cargo for root.)
install-files:
	umask 022 && install -D -m 755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/ring3
	umask 022 && install -D -m 644 include/ring3/eim.h $(DESTDIR)$(PREFIX)/include/ring3/eim.h
	umask 022 && $(BINARY) share-files $(DESTDIR)$(PREFIX)/share

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/ring3 $(DESTDIR)$(PREFIX)/include/ring3/eim.h $(DESTDIR)$(PREFIX)/share/man/man1/ring3.1 $(DESTDIR)$(PREFIX)/share/man/man1/ring3-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/ring3 $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ring3 \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ring3.fish

# A Debian package: target/deb/ring3_VERSION_amd64.deb.
deb: build
	cargo xtask deb

clean:
	cargo clean
	$(MAKE) -C examples/malloc clean

.PHONY: all deps build demo test bench lint deny install install-files uninstall deb clean
