#!/usr/bin/env bash
# Boots a stock Debian kernel with Soft-RoCE (rdma_rxe) under software
# emulation and runs a command of a shared folder in it:
#
#	boot.sh FOLDER COMMAND
#
# The guest sees the host's root read-only and FOLDER as /mnt, read-write, with
# two RDMA addresses, 10.77.0.1 and 10.77.0.2, on device rxe0. The status is
# the command's, 125 if the guest did not come up, or 1 if it ended or hung
# afterwards. Environment:
#
#	CACHE    where the kernel is kept (default ~/.cache/drtmx-softroce)
#	CPU      model of the guest's processor (default max,-erms)
#	SECONDS_BOOT, SECONDS_MAX  how long it may take to come up, and to run (default 300, 1500)
#	MEM, SMP     its memory in MiB and its processors (default 2048, 2)
set -euo pipefail
folder=$(realpath "$1") command=$2
cache=${CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/drtmx-softroce}
here=$(dirname "$(realpath "$0")")
mkdir -p "$cache"

die() {
	echo "test-verbs: $*" >&2
	exit 125
}

[ "$(uname -m)" = x86_64 ] || die "the guest runs this machine's programs, which must be x86_64's"

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

# install gets packages that are missing, by the file each is known by.
install() {
	local missing=() pair
	for pair in "$@"; do
		[ -e "${pair#*=}" ] || missing+=("${pair%%=*}")
	done
	[ ${#missing[@]} -eq 0 ] && return
	command -v apt-get >/dev/null || die "needs ${missing[*]}, and there is no apt-get to install them with"
	{ as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$cache/apt.log" 2>&1 ||
		die "cannot install ${missing[*]} (no network?): $(grep -m1 -E '^(E|Err)' "$cache/apt.log" || tail -n1 "$cache/apt.log")"
}

install qemu-system-x86=/usr/bin/qemu-system-x86_64 busybox-static=/bin/busybox cpio=/usr/bin/cpio \
	kmod=/sbin/modprobe xz-utils=/usr/bin/xz binutils=/usr/bin/strip iproute2=/sbin/ip \
	ibverbs-providers=/etc/libibverbs.d/rxe.driver

# The kernel is unpacked, not installed.
kernel=$(ls -d "$cache"/kernel-*/ 2>/dev/null | sort -V | tail -n1 || true)
if [ -z "$kernel" ]; then
	as_root apt-get update -q >"$cache/apt.log" 2>&1 || true # that a list is old shows at the download
	name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
	[ -n "$name" ] || die "apt knows no linux-image-amd64 (apt-get update?)"
	tmp=$(mktemp -d "$cache/new.XXXXXX")
	(cd "$tmp" && apt-get download "$name") >"$cache/apt.log" 2>&1 ||
		{ rm -rf "$tmp"; die "cannot download $name (no network?): $(grep -m1 '^E' "$cache/apt.log" || tail -n1 "$cache/apt.log")"; }
	dpkg -x "$tmp"/*.deb "$tmp/root"
	depmod -b "$tmp/root" "${name#linux-image-}"
	mv -T "$tmp/root" "$cache/kernel-${name#linux-image-}" 2>/dev/null || true # another run may have been faster
	rm -rf "$tmp"
	kernel=$cache/kernel-${name#linux-image-}/
fi
version=$(basename "$kernel")
version=${version#kernel-}

# crc32_generic is no listed dependency of rdma_rxe, which fails without it.
modules="virtio_pci 9pnet_virtio 9p crc32_generic dummy ib_core ib_uverbs ib_cm iw_cm rdma_cm rdma_ucm rdma_rxe"

make_initrd() {
	local root=$1/root file name m
	mkdir -p "$root"/{bin,mods,proc,sys,dev,host}
	cp /bin/busybox "$root/bin/busybox"
	cp "$here/init.sh" "$root/init"
	chmod +x "$root/init"
	for m in $modules; do modprobe -d "$kernel" -S "$version" --show-depends "$m"; done |
		awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$1/list"
	while read -r file; do
		name=$(basename "$file")
		case $file in
		*.xz) xz -dc "$file" >"$root/mods/${name%.xz}" && name=${name%.xz} ;;
		*.zst) zstd -qdc "$file" >"$root/mods/${name%.zst}" && name=${name%.zst} ;;
		*) cp "$file" "$root/mods/$name" ;;
		esac
		strip --strip-debug "$root/mods/$name"
		echo "$name" >>"$root/mods/order"
	done <"$1/list"
	(cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$1/initrd"
}

work=$(mktemp -d)
pids=()
clean() {
	[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
make_initrd "$work" || die "cannot make the guest's initial file system"

# boot runs the guest. It waits for jobs in the background, so that a signal
# ends it at once.
boot() {
	local share=local,security_model=none,multidevs=remap status=0
	rm -f "$work/pipe" && mkfifo "$work/pipe" && : >"$work/console"
	sed -u 's/\r//g' <"$work/pipe" | tee "$work/console" | sed -un 's/^| \{0,1\}//p' &
	local filter=$!
	timeout -k 10 "${SECONDS_MAX:-1500}" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu "${CPU:-max,-erms}" \
		-smp "${SMP:-2}" -m "${MEM:-2048}" -nodefaults -nographic -no-reboot -serial stdio -monitor none \
		-device isa-debug-exit,iobase=0x501,iosize=1 \
		-fsdev "$share,id=h,path=/,readonly=on" -device virtio-9p-pci,fsdev=h,mount_tag=host \
		-fsdev "$share,id=f,path=$folder" -device virtio-9p-pci,fsdev=f,mount_tag=folder \
		-kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/initrd" \
		-append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check run=$command" \
		</dev/null >"$work/pipe" 2>&1 &
	local guest=$!
	pids=("$guest")
	local waited=0
	while kill -0 "$guest" 2>/dev/null && ! grep -q GUEST-UP "$work/console"; do
		if [ "$waited" -ge "${SECONDS_BOOT:-300}" ]; then
			echo "test-verbs: the guest is not up after $waited s" >&2
			kill "$guest"
			break
		fi
		sleep 1 &
		wait $! # a signal ends this
		waited=$((waited + 1))
	done
	wait "$guest" || status=$?
	wait "$filter" || true
	pids=()
	return "$status"
}

# The device isa-debug-exit makes QEMU's status twice the guest's, plus one;
# anything even is a guest that did not get there, which once in a while is
# the emulator's fault.
for try in 1 2; do
	status=0
	boot || status=$?
	if [ $((status % 2)) -eq 1 ] && grep -q GUEST-UP "$work/console"; then
		exit $((status / 2))
	fi
	echo "test-verbs: the guest ended early (QEMU status $status); its console:" >&2
	cat "$work/console" >&2
	# Once it was up, what ended or hung is what ran in it: a failure, of which
	# no second try may make a success.
	grep -q GUEST-UP "$work/console" && exit 1
done
exit 125
