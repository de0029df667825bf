#!/bin/busybox sh
# The guest's first process: loads the modules, makes a Soft-RoCE device, runs
# the command of the kernel's command line in the host's root, and ends the
# emulator with its status. Lines of the command are marked with "| ".
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

finish() { # isa-debug-exit takes one byte
	printf "\\$(printf %03o $(($1 & 127)))" | dd of=/dev/port bs=1 seek=1281 count=1 2>/dev/null
	poweroff -f
}

for m in $(cat /mods/order); do
	insmod "/mods/$m" || echo "cannot load $m"
done
options=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o $options,ro,cache=loose host /host || finish 125
mount -t 9p -o $options,cache=none folder /host/mnt || finish 125
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs dev /host/dev
mount -t tmpfs tmpfs /host/tmp
mount -t tmpfs tmpfs /host/run
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm

# Loading the module dummy makes a dummy0; rdma_cm does not work over lo.
in_host() { chroot /host "$@"; }
in_host /usr/bin/ip link set lo up
in_host /usr/bin/ip link add roce type dummy
in_host /usr/bin/ip link set roce mtu 4200
in_host /usr/bin/ip addr add 10.77.0.1/24 dev roce
in_host /usr/bin/ip addr add 10.77.0.2/24 dev roce
in_host /usr/bin/ip link set roce up
in_host /usr/bin/rdma link add rxe0 type rxe netdev roce || finish 125

for w in $(cat /proc/cmdline); do
	case $w in run=*) run=${w#run=} ;; esac
done
ulimit -l unlimited
echo "GUEST-UP"
mkfifo /out
in_host /usr/bin/sed -u 's/^/| /' </out &
in_host /bin/sh "/mnt/$run" >/out 2>&1
status=$?
wait
echo "GUEST-DONE $status"
finish $status
