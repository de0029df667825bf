package mem

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canMap says that regions can be mapped memory.
const canMap = true

func haveMemfd() bool {
	fd, err := unix.MemfdCreate("drtmx-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// reserve maps MaxBytes of address space once. Private memory appears in it as
// it is touched; shared memory is mapped into it as the region grows.
func (r *Region) reserve() error {
	prot := unix.PROT_NONE
	if r.opts.Kind == Private {
		prot = unix.PROT_READ | unix.PROT_WRITE
	}
	p, err := mapAligned(uintptr(r.opts.MaxBytes), prot)
	if err != nil {
		return fmt.Errorf("mem: reserve %d bytes: %w", r.opts.MaxBytes, err)
	}
	r.base = p
	runtime.AddCleanup(r, release, mapping{p, uintptr(r.opts.MaxBytes)})
	return nil
}

type mapping struct {
	p unsafe.Pointer
	n uintptr
}

// release runs when the last reference to the region is gone. Regions are
// never unmapped by hand: a reader in this process may still hold one.
func release(m mapping) { _ = unix.MunmapPtr(m.p, m.n) }

// File is one of the files of a Shared region. It is open for reading only, and
// its size never changes.
type File struct {
	Off uint64 // of its first byte in the region
	*os.File
}

// fileShare bounds the number of files of a region, and so of descriptors and
// mappings: a new file has as many segments as the files so far, divided by
// this. It is the share of the region that is mapped before it is needed.
const fileShare = 16

// extend makes the first size bytes usable.
func (r *Region) extend(size uint64) error {
	if r.opts.Kind == Shared && size > r.mapped {
		if err := r.addFile(); err != nil {
			return fmt.Errorf("mem: grow region to %d bytes: %w", size, err)
		}
	}
	r.adviseHuge(size)
	return nil
}

// addFile maps a new file behind the others.
func (r *Region) addFile() error {
	segments := max(1, r.mapped>>r.segShift/fileShare)
	n := min(segments<<r.segShift, r.opts.MaxBytes-r.mapped)
	fd, err := unix.MemfdCreate("drtmx-"+r.opts.Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoMemfd, err)
	}
	defer unix.Close(fd)
	if err := sealFile(fd, n, unsafe.Add(r.base, r.mapped)); err != nil {
		return err
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open for reading: %w", err)
	}
	r.files = append(r.files, File{r.mapped, f})
	r.mapped += n
	return nil
}

// sealFile gives a memfd its size and maps it at a reserved address. After that
// it is sealed: this mapping stays the only writable one, and nobody can change
// the size. A reader that could extend the file, or write to it, could take the
// owner's memory.
func sealFile(fd int, n uint64, at unsafe.Pointer) error {
	if err := unix.Fchmod(fd, 0o400); err != nil { // nobody opens it for writing by mistake
		return fmt.Errorf("protect: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return fmt.Errorf("set the size: %w", err)
	}
	if err := mapFile(fd, n, at, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, regionSeals|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// regionSeals are what a reader relies on: touching a page past the end of a
// file raises SIGBUS.
const regionSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

func mapFile(fd int, n uint64, at unsafe.Pointer, prot int) error {
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(n), prot, unix.MAP_SHARED|unix.MAP_NORESERVE|unix.MAP_FIXED); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	return nil
}

// Files returns the files of a Shared region from an offset on, in ascending
// order, for other processes to map. They stay the region's, and are closed
// when it is garbage.
func (r *Region) Files(from uint64) []File {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.files, from, func(f File, off uint64) int { return cmp.Compare(f.Off, off) })
	return r.files[i:len(r.files):len(r.files)]
}

// Open prepares an empty region for reading what another process owns; Attach
// adds its files. segmentBytes and maxBytes are the owner's.
func Open(segmentBytes, maxBytes uint64) (*Region, error) {
	if segmentBytes < 4096 || segmentBytes&(segmentBytes-1) != 0 || maxBytes < segmentBytes || maxBytes > 1<<47 {
		return nil, fmt.Errorf("%w: segment %d, maximum %d bytes", ErrOptions, segmentBytes, maxBytes)
	}
	r := &Region{
		opts:     Options{MaxBytes: maxBytes, SegmentBytes: segmentBytes, Kind: Shared},
		segShift: log2(segmentBytes), segMask: segmentBytes - 1, readOnly: true,
	}
	if err := r.reserve(); err != nil {
		return nil, err
	}
	return r, nil
}

// Attach maps a file of the owner's region at an offset, and returns the offset
// of the next one. The region must have been made by Open, and its files are
// attached in order. A file that is there already stays: another goroutine may
// be reading it. The caller keeps f, and may close it.
func (r *Region) Attach(off uint64, f *os.File) (next uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd := f.Fd()
	// Read the size after the seals: a sealed size cannot change.
	seals, err := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
	if err != nil || seals&regionSeals != regionSeals {
		return 0, fmt.Errorf("mem: descriptor is not of a region (seals %#x, %v)", seals, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return 0, fmt.Errorf("mem: size of a region's file: %w", err)
	}
	have, n := r.size.Load(), uint64(st.Size)
	if !r.readOnly || n == 0 || n&(r.opts.SegmentBytes-1) != 0 || off > have || n > r.opts.MaxBytes-off || off < have && n > have-off {
		return 0, fmt.Errorf("%w: file of %d bytes at %d, in a region that has %d of at most %d", ErrOptions, n, off, have, r.opts.MaxBytes)
	}
	if off < have {
		return off + n, nil
	}
	if err := mapFile(int(fd), n, unsafe.Add(r.base, off), unix.PROT_READ); err != nil {
		return 0, fmt.Errorf("mem: region's file at %d: %w", off, err)
	}
	r.size.Store(off + n)
	return off + n, nil
}
