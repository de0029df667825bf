package mem

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func haveMemfd() bool {
	fd, err := unix.MemfdCreate("drtmx-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// reserve maps MaxBytes of address space once, before the memfd is sealed
// against future writable mappings: this mapping stays the only writable one,
// and pages of the file appear in it as the file grows.
func (r *Region) reserve() error {
	flags, fd := unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1
	if r.opts.Kind == Shared {
		var err error
		fd, err = unix.MemfdCreate("drtmx-"+r.opts.Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return fmt.Errorf("%w: %v", ErrNoMemfd, err)
		}
		// A region that still grows cannot be sealed against growth. Without
		// the permission to write, a reader cannot reopen the descriptor that
		// it is given and extend or fill the file.
		if err := unix.Fchmod(fd, 0o400); err != nil {
			unix.Close(fd)
			return fmt.Errorf("mem: protect region: %w", err)
		}
		flags = unix.MAP_SHARED | unix.MAP_NORESERVE
	}
	p, err := mapAligned(fd, uintptr(r.opts.MaxBytes), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return fmt.Errorf("mem: reserve %d bytes: %w", r.opts.MaxBytes, err)
	}
	r.base, r.fd = p, fd
	if fd >= 0 {
		seals := unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			release(mapping{p, uintptr(r.opts.MaxBytes), fd})
			return fmt.Errorf("mem: seal region: %w", err)
		}
	}
	runtime.AddCleanup(r, release, mapping{p, uintptr(r.opts.MaxBytes), fd})
	return nil
}

type mapping struct {
	p  unsafe.Pointer
	n  uintptr
	fd int
}

// release runs when the last reference to the region is gone. Regions are
// never unmapped by hand: a reader in this process may still hold one.
func release(m mapping) {
	_ = unix.MunmapPtr(m.p, m.n)
	if m.fd >= 0 {
		_ = unix.Close(m.fd)
	}
}

func (r *Region) extend(size uint64) error {
	if r.fd < 0 {
		r.adviseHuge(size)
		return nil
	}
	if err := unix.Ftruncate(r.fd, int64(size)); err != nil {
		// A reader of the same user may yet have given itself the permission to
		// write and extended the file, and root needs none. The added bytes are
		// zero, as new segments must be.
		var st unix.Stat_t
		if unix.Fstat(r.fd, &st) == nil && st.Size >= int64(size) {
			return nil
		}
		return fmt.Errorf("mem: grow region to %d bytes: %w", size, err)
	}
	r.adviseHuge(size)
	return nil
}

// ReadOnlyFile opens the region's memory for another process: a descriptor
// that cannot be written, of a file sealed against writable mappings. The
// caller owns it. It fails with ErrNoMemfd unless the region is Shared.
func (r *Region) ReadOnlyFile() (*os.File, error) {
	if r.fd < 0 {
		return nil, ErrNoMemfd
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.fd), os.O_RDONLY, 0)
	runtime.KeepAlive(r)
	if err != nil {
		return nil, fmt.Errorf("mem: open region for reading: %w", err)
	}
	return f, nil
}

// Open maps a descriptor received from the owner of a region, read-only. It
// takes its own duplicate of f. segmentBytes and maxBytes are the owner's.
func Open(f *os.File, segmentBytes, maxBytes uint64) (*Region, error) {
	if segmentBytes < 4096 || segmentBytes&(segmentBytes-1) != 0 || maxBytes < segmentBytes || maxBytes > 1<<47 {
		return nil, fmt.Errorf("%w: segment %d, maximum %d bytes", ErrOptions, segmentBytes, maxBytes)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mem: duplicate descriptor: %w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		unix.Close(fd)
		return nil, fmt.Errorf("mem: descriptor is not a region (seals %#x, %v)", seals, err)
	}
	p, err := mapAligned(fd, uintptr(maxBytes), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mem: map region: %w", err)
	}
	r := &Region{
		opts:     Options{MaxBytes: maxBytes, SegmentBytes: segmentBytes, Kind: Shared},
		segShift: log2(segmentBytes), readOnly: true, fd: fd, base: p,
	}
	runtime.AddCleanup(r, release, mapping{p, uintptr(maxBytes), fd})
	r.refresh()
	return r, nil
}

// sizeReadOnly returns the size that the last refresh found.
func (r *Region) sizeReadOnly() uint64 { return r.size.Load() }

// refresh asks the kernel how far the owner has grown the file. Touching a
// page past its end would raise SIGBUS, so readers stay below this size; the
// file is sealed against shrinking.
func (r *Region) refresh() {
	var st unix.Stat_t
	if unix.Fstat(r.fd, &st) == nil && st.Size > 0 {
		size := min(uint64(st.Size), r.opts.MaxBytes)
		for {
			old := r.size.Load()
			if size <= old || r.size.CompareAndSwap(old, size) {
				return
			}
		}
	}
}

// Refresh updates the size of a region opened for reading. Providers call it
// when an address lies past the size last seen.
func (r *Region) Refresh() {
	if r.readOnly {
		r.refresh()
	}
}
