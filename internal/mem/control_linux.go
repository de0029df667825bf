package mem

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotControl is returned by OpenControl for a descriptor that is not a
// control segment of the expected size.
var ErrNotControl = errors.New("mem: descriptor is not a control segment")

const controlSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Control is a memfd that two processes both map read-write: rings, doorbells
// and flags, never tables. Its size is fixed and sealed, so that neither
// process can truncate it and make the other fault. Each process must check
// what the other stores in it, like any input. Methods are safe for concurrent
// use. The mapping lives until the Control is garbage.
type Control struct {
	m mapping
	f *os.File // nil in a Control that was opened
}

// NewControl creates a control segment of size bytes, a multiple of the page
// size. A page takes memory when it is first touched. It fails with ErrNoMemfd
// where the kernel has no memfd.
func NewControl(name string, size uint64) (*Control, error) {
	if size == 0 || size%uint64(os.Getpagesize()) != 0 {
		return nil, fmt.Errorf("%w: control segment of %d bytes", ErrOptions, size)
	}
	fd, err := unix.MemfdCreate("drtmx-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrNoMemfd, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mem: size control segment to %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, controlSeals); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mem: seal control segment: %w", err)
	}
	c, err := mapControl(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	c.f = os.NewFile(uintptr(fd), "control")
	return c, nil
}

// OpenControl maps a control segment received from another process; f may be
// closed afterwards. It fails with ErrNotControl unless f is a memfd of
// exactly size bytes whose size is sealed and whose contents are not.
func OpenControl(f *os.File, size uint64) (*Control, error) {
	fd := int(f.Fd())
	// Read the size after the seals: a sealed size cannot change.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	var st unix.Stat_t
	if err != nil || seals&(want|unix.F_SEAL_FUTURE_WRITE) != want || unix.Fstat(fd, &st) != nil || st.Size != int64(size) {
		return nil, fmt.Errorf("%w of %d bytes (seals %#x, size %d)", ErrNotControl, size, seals, st.Size)
	}
	return mapControl(fd, size)
}

func mapControl(fd int, size uint64) (*Control, error) {
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mem: map control segment: %w", err)
	}
	c := &Control{m: mapping{p, uintptr(size)}}
	runtime.AddCleanup(c, release, c.m)
	return c, nil
}

// File returns the descriptor to pass to the other process, nil if this Control
// was opened. The Control keeps ownership of it.
func (c *Control) File() *os.File { return c.f }

// CloseFile closes the descriptor of a created segment. The mapping stays.
// File must not be called afterwards.
func (c *Control) CloseFile() { c.f.Close() }

// Span gives access to the n bytes at off; it panics if they are not aligned
// words of the segment. The span does not keep the Control alive.
func (c *Control) Span(off, n uint64) Span {
	if (off|n)&(WordBytes-1) != 0 || off > uint64(c.m.n) || n > uint64(c.m.n)-off {
		panic(fmt.Sprintf("mem: span [%d,+%d) outside control segment of %d bytes", off, n, c.m.n))
	}
	return Span{unsafe.Add(c.m.p, off), int(n / WordBytes)}
}

// Discard returns the whole pages within the n bytes at off to the kernel; both
// processes then read zeroes there.
func (c *Control) Discard(off, n uint64) {
	page := uint64(os.Getpagesize())
	from, to := (off+page-1)/page*page, min(off+n, uint64(c.m.n))/page*page
	if from < to {
		_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(c.m.p, from)), to-from), unix.MADV_REMOVE)
		runtime.KeepAlive(c)
	}
}
