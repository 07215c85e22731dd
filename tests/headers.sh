#!/bin/sh
# headers.sh DIRECTORY: where bcc finds the kernel's headers (BCC_KERNEL_SOURCE): a tree of links in DIRECTORY to the headers that
# Debian has installed, if the running kernel has none of its own where bcc looks. Prints nothing if it has, or none are installed.
set -e
[ ! -e "/lib/modules/$(uname -r)/build" ] || exit 0
common=$(ls -d /usr/src/linux-headers-*-common 2>/dev/null | tail -n 1)
[ -n "$common" ] || exit 0
own=$(ls -d "${common%-common}"-* | grep -v -e '-common$' | head -n 1)
tree="$1/$(basename "$own")"
if [ ! -d "$tree" ]; then
	mkdir -p "$tree.$$"
	for part in include arch; do
		cp -rs "$common/$part" "$own/$part" "$tree.$$/"
	done
	mv -T "$tree.$$" "$tree"
fi
echo "$tree"
