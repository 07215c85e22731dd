# ring3: the commands that a newcomer needs. Everything else is `cargo xtask`.
PREFIX ?= /usr/local
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

install: build
	install -D -m 755 target/release/ring3 $(DESTDIR)$(PREFIX)/bin/ring3

clean:
	cargo clean
	$(MAKE) -C examples/malloc clean

.PHONY: all deps build demo test bench install clean
