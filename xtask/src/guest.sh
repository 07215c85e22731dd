#!/bin/busybox sh
# The first process of the guest of `cargo xtask pku`: shows it the files of the machine below, which it cannot change, and runs
# what the kernel's command line says.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# In rounds: some modules need others first.
for round in 1 2 3 4; do
	for module in /modules/*.ko; do
		$b insmod "$module" 2>/dev/null && $b rm "$module"
	done
done
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,ro,msize=512000 files /below &&
	$b mount -t tmpfs memory /changes && $b mkdir /changes/files /changes/work &&
	$b mount -t overlay -o lowerdir=/below,upperdir=/changes/files,workdir=/changes/work overlay /root ||
	$b poweroff -f
for directory in proc sys dev; do $b mount --bind /$directory /root/$directory; done
for directory in tmp run dev/shm; do
	$b mkdir -p /root/$directory
	$b mount -t tmpfs -o mode=1777 memory /root/$directory
done
$b ip link set lo up
command=$($b sed -n 's/.* ring3=\([^ ]*\).*/\1/p' /proc/cmdline | $b tr '|' ' ')
$b chroot /root /bin/sh -c "$command"
echo "guest: exit status $?"
$b poweroff -f
